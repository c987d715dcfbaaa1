"""Avro: schemas, binary data, and the rules of schema resolution."""
