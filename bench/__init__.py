"""Benchmarks: each compares this library with another one, or with the least possible work, and prints ratios."""
