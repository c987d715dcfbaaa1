"""Idempotent producers: what keeps a message that was sent twice from being stored twice."""
