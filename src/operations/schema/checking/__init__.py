"""Checking: validation of values, and messages about their problems."""
