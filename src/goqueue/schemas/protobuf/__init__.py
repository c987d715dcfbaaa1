"""Protobuf: schemas as source text or descriptors, and compatibility of their wire formats."""
