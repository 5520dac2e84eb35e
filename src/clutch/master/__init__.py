"""Decisions made real: the loop, its store and its effects."""
