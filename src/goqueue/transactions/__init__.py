"""Idempotent producers and transactions: sequences, the coordinator, markers, decisions."""
