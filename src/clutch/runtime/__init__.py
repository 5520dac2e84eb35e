"""What runs inside a task."""
