"""Errors of connecting to a server: which of them are permanent, and whether TLS is the cause.

After a failed connection, this module connects to the server again to find the cause, and sends no secrets. The server
gets a TLS handshake that accepts any certificate and is then aborted, or a request to which every server of its kind
responds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

from operations.errors import CallError, ErrorCode

UNTRUSTED = "UNTRUSTED_CERTIFICATE"
"""The server's certificate is not trusted."""
WRONG_PROTOCOL = "WRONG_PROTOCOL"
"""The server does not use the expected protocol; for example, it uses TLS unexpectedly."""
UNSUPPORTED = "UNSUPPORTED"
"""A required server feature is missing."""
_PERMANENT = frozenset({UNTRUSTED, WRONG_PROTOCOL, UNSUPPORTED})
_WITHIN = 2.0
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""OpenSSL's reasons for a response that is not TLS."""


def is_permanent(error: Exception) -> bool:
    """Whether an error is known to be permanent: connecting again would fail in the same way."""
    if not isinstance(error, CallError):
        return False
    details = error.details if isinstance(error.details, dict) else {}
    return error.code is ErrorCode.ACCESS_DENIED or details.get("reason") in _PERMANENT


def untrusted(where: str, error: ssl.SSLCertVerificationError) -> CallError:
    """Return the error for a server whose certificate is not trusted."""
    reason = f"no connection to {where}: its certificate is not trusted ({error.verify_message})"
    advice = "to trust another authority, pass tls=ssl.create_default_context(cafile=…)"
    return CallError(ErrorCode.UNAVAILABLE, f"{reason}; {advice}", {"executed": "no", "reason": UNTRUSTED})


def reason_of(error: Exception) -> str:
    """Return why a connection failed; for a ConnectionError with a number, without the address that asyncio adds."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def require_extra(module: str, extra: str) -> ImportError:
    """Return the error for a missing optional library: one line with the extra to install."""
    return ImportError(f"{module} is not installed: pip install 'operations[{extra}]'")


def wrong_protocol(where: str, advice: str) -> CallError:
    """Return the error for a server that can be reached and uses another protocol."""
    details = {"executed": "no", "reason": WRONG_PROTOCOL}
    return CallError(ErrorCode.UNAVAILABLE, f"no connection to {where}: {advice}", details)


def is_reachable(error: Exception) -> bool:
    """Whether a server may be listening, given the exception of a failed connection."""
    return not isinstance(error.__cause__ or error, ConnectionRefusedError | socket.gaierror)


def has_no_tls(error: Exception) -> bool:
    """Whether a connection may have failed because the server does not use TLS; False if the error shows TLS."""
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
