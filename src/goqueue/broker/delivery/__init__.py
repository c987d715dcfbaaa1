"""Delivery from the partitions of a broker: cursors, leases, delays, schedules, dead letters."""
