"""The master's journal: what was decided, in order, durable before anything acts on it."""
