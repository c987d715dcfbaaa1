"""Consumer groups: who is a member, and which partitions are whose. Pure: time comes in as an argument."""
