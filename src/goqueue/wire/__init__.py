"""What both ends of a connection agree on: frames, verbs, error codes, and where a key goes."""
