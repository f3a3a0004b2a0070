"""How a signed request looks on the wire: a head, the token, a seal, and the request itself."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SIGNED = 1
_HEAD = struct.Struct(">BBH")
SEAL_BYTES = 16


class Sealed(NamedTuple):
    """A signed request, taken apart and not checked."""

    kind: int
    token: bytes
    seal: bytes
    request: bytes


def join(kind: int, token: bytes, seal: bytes, request: bytes) -> bytes:
    """A signed request as one message."""
    return _HEAD.pack(_SIGNED, kind, len(token)) + token + seal + request


def is_sealed(message: bytes) -> bool:
    """Whether a message says that it is signed: neither JSON nor a MessagePack map begins like that."""
    return message[:1] == b"\x01"


def split(message: bytes) -> Sealed | None:
    """The parts of a signed request; None where it is cut short."""
    if len(message) < _HEAD.size + SEAL_BYTES:
        return None
    _, kind, size = _HEAD.unpack_from(message)
    start = _HEAD.size + size
    end = start + SEAL_BYTES
    return Sealed(kind, message[_HEAD.size : start], message[start:end], message[end:])
