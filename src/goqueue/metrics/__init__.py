"""Metrics of a running node, in the format of Prometheus."""
