"""One node without a network: topics, publishing, reading, housekeeping."""
