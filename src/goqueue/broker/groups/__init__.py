"""Consumer groups of a broker: membership, polls, settlements, positions."""
