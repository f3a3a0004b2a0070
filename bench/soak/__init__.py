"""Soak test: calls, streams and faults at half the maximum rate, with a check for growth."""
