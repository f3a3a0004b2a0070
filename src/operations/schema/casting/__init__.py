"""Casting: normalise values to their schema by a policy."""
