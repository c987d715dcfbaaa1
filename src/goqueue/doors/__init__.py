"""Where requests come in: each door translates one protocol into calls of the `Service`, and decides nothing."""
