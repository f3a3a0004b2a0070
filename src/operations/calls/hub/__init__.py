"""Hub: routes calls between the spokes that connect to it; the client is `hub.spoke.Spoke`."""

from operations.calls.hub.server import Hub

__all__ = ["Hub"]
