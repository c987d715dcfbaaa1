"""JSON Schema: validation, and exact compatibility of two schemas."""
