"""Format of a signed request: the head, the token, the root, the signature and the request, in this order.

Only a nested call has a root (see `RootRequest`).
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

BY_SESSION = 1
"""The kind of a request that was signed by its caller."""
BY_GRANT = 3
"""The kind of a nested call that a worker signed for the caller of the root request."""
SIGNATURE_BYTES = 16
_SIGNED = 1
_HEAD = struct.Struct(">BBH")
_ROOT = struct.Struct(">16sq")


class RootRequest(NamedTuple):
    """The signed request that nested calls belong to: its token, id and deadline."""

    token: bytes
    id: bytes
    """A hash of the request id."""
    deadline: int
    """Epoch milliseconds after which nested calls are refused."""

    @property
    def packed(self) -> bytes:
        """The id and the deadline in the format of a signed request."""
        return _ROOT.pack(self.id, self.deadline)


class SignedRequest(NamedTuple):
    """The parts of a signed request before verification."""

    kind: int
    token: bytes
    root: RootRequest | None
    signature: bytes
    request: bytes


def root_id(request_id: str) -> bytes:
    """Return the id of a root: a hash of its request id."""
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=16).digest()


def join(kind: int, token: bytes, root: bytes, signature: bytes, request: bytes) -> bytes:
    """Return the parts of a signed request as one message."""
    return b"".join((_HEAD.pack(_SIGNED, kind, len(token)), token, root, signature, request))


def is_signed(message: bytes) -> bool:
    """Return whether a message begins like a signed request; neither JSON nor a MessagePack map does."""
    return message[:1] == b"\x01"


def split(message: bytes) -> SignedRequest | None:
    """Return the parts of a signed request without verifying them; None if the message is too short.

    A longer message that is truncated has short or empty parts, which do not pass the verification.
    """
    if len(message) < _HEAD.size + SIGNATURE_BYTES:
        return None
    _, kind, size = _HEAD.unpack_from(message)
    start = _HEAD.size + size
    token = message[_HEAD.size : start]
    root = None
    if kind == BY_GRANT:
        if len(message) < start + _ROOT.size:
            return None
        root = RootRequest(token, *_ROOT.unpack_from(message, start))
        start += _ROOT.size
    end = start + SIGNATURE_BYTES
    return SignedRequest(kind, token, root, message[start:end], message[end:])
