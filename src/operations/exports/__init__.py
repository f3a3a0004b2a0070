"""Exports of operations: tools for models, adapters for agent frameworks, typed stubs, shared schema definitions."""
