"""Routes of experiments, trials, checkpoints and searches; and what trials say."""
