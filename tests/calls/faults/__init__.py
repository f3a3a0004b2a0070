"""Faults on every transport that has a network in it; `scenarios.py` lists them all."""
