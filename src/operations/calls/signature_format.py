"""How a signed request is written: a head, the token, the proof, and the request itself."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SIGNED = 1
_HEAD = struct.Struct(">BBH")
PROOF_BYTES = 16


class SignedRequest(NamedTuple):
    """The parts of a signed request; nothing of them is checked."""

    kind: int
    token: bytes
    proof: bytes
    request: bytes


def join(kind: int, token: bytes, proof: bytes, request: bytes) -> bytes:
    """A signed request as one message."""
    return _HEAD.pack(_SIGNED, kind, len(token)) + token + proof + request


def is_signed(message: bytes) -> bool:
    """Whether a message says that it is signed: neither JSON nor a MessagePack map begins like that."""
    return message[:1] == b"\x01"


def split(message: bytes) -> SignedRequest | None:
    """The parts of a signed request; None where it is truncated."""
    if len(message) < _HEAD.size + PROOF_BYTES:
        return None
    _, kind, size = _HEAD.unpack_from(message)
    start = _HEAD.size + size
    end = start + PROOF_BYTES
    return SignedRequest(kind, message[_HEAD.size : start], message[start:end], message[end:])
