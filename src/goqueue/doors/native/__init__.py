"""The native protocol: frames over TCP."""
