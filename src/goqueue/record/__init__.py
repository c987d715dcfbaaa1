"""Bytes <-> records: the format, and the kernel that works on whole batches of it."""
