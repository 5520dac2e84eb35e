"""Hands on a machine: a pure brain, and the code that does what it decided."""
