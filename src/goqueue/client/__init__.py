"""The client: publishes, reads and administers over the native protocol."""
