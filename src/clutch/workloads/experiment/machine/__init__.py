"""An experiment as it is: its state, its trials, its checkpoints, and how its own notes change them."""
