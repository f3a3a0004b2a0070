"""A hub and its spokes: `Hub` routes calls between the spokes that connect to it; `hub.spoke` has the spoke."""

from operations.calls.hub.server import Hub

__all__ = ["Hub"]
