"""Consumer groups: members, and which partitions each of them has. Pure: time comes in as an argument."""
