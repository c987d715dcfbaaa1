"""The process around a broker: configuration, logs, threads, doors, signals."""
