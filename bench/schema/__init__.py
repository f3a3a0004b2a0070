"""How fast schemas check and cast, beside their peers."""
