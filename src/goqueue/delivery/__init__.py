"""What is delivered to whom, when, and what became of it: pure state machines over sets of offsets."""
