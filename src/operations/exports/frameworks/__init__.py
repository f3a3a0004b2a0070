"""Tool sets in the form of agent frameworks, one module each; a module imports only its framework."""
