"""Tool sets as tools of agent frameworks: one module for each framework, which imports no other framework."""
