"""The few questions that the shell asks of an experiment's own state."""
