"""What becomes of messages: recorded once per batch, told message by message, and passed on to whoever wants it."""
