"""HTTP for sources: a seam of one verb, with pyreqwest behind it by default and httpx2 as the alternative."""

from operations.http.client import ClientOptions, HTTPClient, HTTPRequest, HTTPResponse, ReadyResponse, Whole, read_body
from operations.http.default import default_client

__all__ = [
    "ClientOptions",
    "HTTPClient",
    "HTTPRequest",
    "HTTPResponse",
    "ReadyResponse",
    "Whole",
    "default_client",
    "read_body",
]
