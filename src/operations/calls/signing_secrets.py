"""The keys of signed requests: what workers and issuers share, and what an issuer gives to a caller.

A caller's key is derived from its token and the secret. The token travels with every request and is no secret; the key
never travels. Whoever has the secret can derive the key of every token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator

import msgspec

from operations.calls.signature_format import PROOF_BYTES

_LEAST_SECRET = 32


class Session(msgspec.Struct, frozen=True):
    """What a caller signs with: its token, which everybody may see, and its key, which nobody else may."""

    token: str
    key: bytes

    def __repr__(self) -> str:
        return "<Session>"


class SigningSecret:
    """The secret of workers and issuers: whoever has it can sign for every token.

    While one secret replaces another, `accepts` names those that are accepted beside it: signatures and sessions are
    made with the first alone, and checked with all of them.
    """

    def __init__(self, secret: bytes, *, accepts: Iterable[bytes] = ()) -> None:
        self._secrets = tuple(_stretch(each) for each in (secret, *accepts))

    def session(self, token: str) -> Session:
        """What to give the caller that a token was issued to, over a channel that nobody else reads."""
        return Session(token, next(self.session_keys(token)))

    def session_keys(self, token: str) -> Iterator[bytes]:
        """The keys that a request with this token may be signed with."""
        return (_derive(each, token.encode(), b"ops-session") for each in self._secrets)


def grant_key(session_key: bytes, root: bytes) -> bytes:
    """The key for calls nested in one request of a session: it holds for that request and its deadline alone."""
    return _derive(session_key, root, b"ops-grant")


def prove(key: bytes, address: bytes, request: bytes) -> bytes:
    """A keyed hash of a request and the address it is sent to, which only somebody with the key can make."""
    proof = hashlib.blake2b(address, key=key, person=b"ops-request", digest_size=PROOF_BYTES)
    proof.update(request)
    return proof.digest()


def is_proven(proof: bytes, key: bytes, address: bytes, request: bytes) -> bool:
    """Whether a request to an address was signed with a key."""
    return hmac.compare_digest(proof, prove(key, address, request))


def _stretch(secret: bytes) -> bytes:
    if len(secret) < _LEAST_SECRET:
        raise ValueError(f"the secret has {len(secret)} bytes: at least {_LEAST_SECRET} random ones are needed")
    return hashlib.blake2b(secret, person=b"operations").digest()


def _derive(secret: bytes, data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret, person=purpose, digest_size=32).digest()
