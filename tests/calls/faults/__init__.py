"""Faults on every transport with a network; `scenarios.py` lists them."""
