"""Exports: what is made of specs for others: shared schema definitions, tools for models, typed stubs."""
