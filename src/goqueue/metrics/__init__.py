"""Numbers about a running node, in the form that Prometheus reads."""
