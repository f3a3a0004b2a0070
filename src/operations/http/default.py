"""The client that is used when none is given."""

from __future__ import annotations

from operations.http.client import ClientOptions, HTTPClient


def default_client(options: ClientOptions | None = None) -> HTTPClient:
    """A new client on pyreqwest; the caller closes it."""
    try:
        from operations.http.pyreqwest_client import PyreqwestClient
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyreqwest":
            raise
        raise ImportError('HTTP needs pyreqwest: pip install "operations[openapi]"', name="pyreqwest") from None
    return PyreqwestClient(options)
