"""What is decided: pure machines. No await, socket, file, clock, chance or environment; all of those are arguments."""
