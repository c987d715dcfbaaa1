"""What a process needs of its machine: busy-polling, memory, randomness, changes of a file."""
