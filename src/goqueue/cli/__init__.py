"""The `goqueue` command."""
