"""What is said: frozen types for every id, spec, fact, message, view and error.

Imports nothing of ours. Everything that crosses a process boundary or reaches the disk is a type of this package.
"""
