"""Speed of schema validation and casting against peers."""
