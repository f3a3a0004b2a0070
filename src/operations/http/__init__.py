"""HTTP clients: the Protocol `HTTPClient`, implemented on pyreqwest (default) and httpx2."""

from __future__ import annotations

from operations.http.client import ClientOptions, HTTPClient, HTTPRequest, HTTPResponse, read_body

__all__ = [
    "ClientOptions",
    "HTTPClient",
    "HTTPRequest",
    "HTTPResponse",
    "default_client",
    "read_body",
]


def default_client(options: ClientOptions | None = None) -> HTTPClient:
    """Return a new client on pyreqwest; the caller closes it."""
    try:
        from operations.http.pyreqwest import PyreqwestClient
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyreqwest":
            raise
        raise ImportError('HTTP requires pyreqwest: pip install "operations[openapi]"', name="pyreqwest") from None
    return PyreqwestClient(options)
