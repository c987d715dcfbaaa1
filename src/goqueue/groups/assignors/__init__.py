"""Ways to deal out partitions: each is one function of the members' topics, the partition counts and the owners now."""
