"""Sources: anything that yields Operations."""
