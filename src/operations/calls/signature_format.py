"""How a signed request is written: a head, the token, for nested calls the root, the proof, and the request itself."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

BY_SESSION = 1
"""The kind of a request that its caller signed."""
BY_GRANT = 3
"""The kind of a request that a worker made for the caller of another one."""
PROOF_BYTES = 16
_SIGNED = 1
_HEAD = struct.Struct(">BBH")
_ROOT = struct.Struct(">16sq")


class Root(NamedTuple):
    """The signed request that nested calls are made for: whose token, which request, and until when."""

    token: bytes
    id: bytes
    """A hash of the request's id."""
    deadline: int
    """Epoch milliseconds after which nothing is called for it."""

    @property
    def packed(self) -> bytes:
        """The id and the deadline, as they travel."""
        return _ROOT.pack(self.id, self.deadline)


class SignedRequest(NamedTuple):
    """The parts of a signed request; nothing of them is checked."""

    kind: int
    token: bytes
    root: Root | None
    proof: bytes
    request: bytes


def root_id(request_id: str) -> bytes:
    """What a root is known by."""
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=16).digest()


def join(kind: int, token: bytes, root: bytes, proof: bytes, request: bytes) -> bytes:
    """A signed request as one message."""
    return b"".join((_HEAD.pack(_SIGNED, kind, len(token)), token, root, proof, request))


def is_signed(message: bytes) -> bool:
    """Whether a message says that it is signed: neither JSON nor a MessagePack map begins like that."""
    return message[:1] == b"\x01"


def split(message: bytes) -> SignedRequest | None:
    """The parts of a signed request; None where it is truncated."""
    if len(message) < _HEAD.size + PROOF_BYTES:
        return None
    _, kind, size = _HEAD.unpack_from(message)
    start = _HEAD.size + size
    token = message[_HEAD.size : start]
    root = None
    if kind == BY_GRANT:
        if len(message) < start + _ROOT.size:
            return None
        root = Root(token, *_ROOT.unpack_from(message, start))
        start += _ROOT.size
    end = start + PROOF_BYTES
    return SignedRequest(kind, token, root, message[start:end], message[end:])
