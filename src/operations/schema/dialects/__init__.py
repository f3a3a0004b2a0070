"""Conversion of all JSON Schema dialects to one form."""
