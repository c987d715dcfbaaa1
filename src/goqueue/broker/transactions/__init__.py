"""Transactions of one node: the coordinators that are attached here, and what partitions do in a transaction."""
