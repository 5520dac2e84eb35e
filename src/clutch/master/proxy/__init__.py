"""HTTP and WebSocket into a task's port, through the link that its agent opened."""
