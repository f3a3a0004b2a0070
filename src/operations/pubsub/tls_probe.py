"""TLS probe: whether a server uses TLS unexpectedly, or does not use it although it was expected.

The probe is used only after a connection has failed, and sends no secrets. It sends a TLS handshake that accepts any
certificate and is then aborted, or a request to which every server of its kind responds.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from operations.errors import CallError, ErrorCode
from operations.pubsub.connection_errors import WRONG_PROTOCOL

_WITHIN = 2.0
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""OpenSSL's reasons for a response that is not TLS."""


def wrong_protocol(where: str, advice: str) -> CallError:
    """Return the error for a server that can be reached and uses another protocol."""
    details = {"executed": "no", "reason": WRONG_PROTOCOL}
    return CallError(ErrorCode.UNAVAILABLE, f"no connection to {where}: {advice}", details)


def is_reachable(error: Exception) -> bool:
    """Whether a server may be listening, given the exception of a failed connection."""
    return not isinstance(error.__cause__ or error, ConnectionRefusedError | socket.gaierror)


def has_no_tls(error: Exception) -> bool:
    """Whether a TLS handshake may have failed because the server does not use TLS; an alert shows that it does."""
    cause = error.__cause__ or error
    return not isinstance(cause, ssl.SSLError) or cause.reason in _NOT_TLS


async def uses_tls(host: str, port: int) -> bool:
    """Whether a server is known to use TLS from its first byte on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_WITHIN):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLError as error:
        return error.reason not in _NOT_TLS
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def plain_reply(host: str, port: int, question: bytes = b"") -> bytes:
    """Return the start of a server's response to `question` without TLS; empty if there is none."""
    try:
        async with asyncio.timeout(_WITHIN):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return await reader.read(4096)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return b""
