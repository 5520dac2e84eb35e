"""What members say to their master: meetings, leaving, metrics, checkpoints, names."""
