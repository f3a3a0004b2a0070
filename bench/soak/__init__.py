"""A soak: calls, streams and faults of callers at half the most a machine can do, and whether anything grows."""
