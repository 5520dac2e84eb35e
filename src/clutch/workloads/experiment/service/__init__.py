"""The shell of experiments in the master: what carries words, validations and matches to their controllers."""
