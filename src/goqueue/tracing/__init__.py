"""Tracing: the life of messages, recorded once per batch, shown message by message, and exported."""
