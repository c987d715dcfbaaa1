"""Delivery of messages to groups, as pure state machines over sets of offsets: leases, retries, delays, schedules."""
