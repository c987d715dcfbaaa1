"""Topics: their names and settings, their partitions, and the durable list of them."""
