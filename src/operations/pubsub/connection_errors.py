"""Errors of connecting to a server, and which of them are permanent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from operations.errors import CallError, ErrorCode

if TYPE_CHECKING:
    import ssl

UNTRUSTED = "UNTRUSTED_CERTIFICATE"
"""The server's certificate is not trusted."""
WRONG_PROTOCOL = "WRONG_PROTOCOL"
"""The server uses TLS unexpectedly, or does not use it although it was expected."""
UNSUPPORTED = "UNSUPPORTED"
"""A required server feature is missing."""
_PERMANENT = frozenset({UNTRUSTED, WRONG_PROTOCOL, UNSUPPORTED})


def is_permanent(error: Exception) -> bool:
    """Whether connecting again would fail in the same way."""
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
    """Return why a connection failed, without the number and address that asyncio adds."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def require_extra(module: str, extra: str) -> ImportError:
    """Return the error for a missing optional library: one line with the extra to install."""
    return ImportError(f"{module} is not installed: pip install 'operations[{extra}]'")
