"""One partition of a running broker: its log and ledger, appends, reads, and the state of its producers."""
