"""Checking: whether a value fits, and what is wrong with it in words."""
