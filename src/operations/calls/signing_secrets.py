"""Keys of signed requests: the secret that workers and issuers share, and the session that an issuer gives a caller.

A caller's key is derived from its token and the secret. The token is sent with every request and is not secret; the key
is never sent. Every process that has the secret can derive the key of every token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator

import msgspec

from operations.calls.signature_format import SIGNATURE_BYTES

_LEAST_SECRET = 32


class SigningSession(msgspec.Struct, frozen=True):
    """The credentials that a caller signs with: its token, which is public, and its key, which is secret."""

    token: str
    key: bytes

    def __repr__(self) -> str:
        return "<SigningSession>"


class SigningSecret:
    """The secret of workers and issuers; its owner can sign for every token.

    New signatures and sessions use `secret`. Verification also accepts the secrets in `accepts`: pass the old secret
    there while a new one replaces it.
    """

    def __init__(self, secret: bytes, *, accepts: Iterable[bytes] = ()) -> None:
        self._secrets = tuple(_stretch(each) for each in (secret, *accepts))

    def session(self, token: str) -> SigningSession:
        """Return the session for the caller of a token; send it to the caller over a confidential channel."""
        return SigningSession(token, next(self.session_keys(token)))

    def session_keys(self, token: str) -> Iterator[bytes]:
        """Return the keys that may sign a request with this token."""
        return (_derive(each, token.encode(), b"ops-session") for each in self._secrets)


def grant_key(session_key: bytes, root: bytes) -> bytes:
    """Return the key that signs calls nested in one request; `root` has the id and the deadline of that request."""
    return _derive(session_key, root, b"ops-grant")


def sign(key: bytes, address: bytes, request: bytes) -> bytes:
    """Return the signature of a request and its address: a keyed hash."""
    signature = hashlib.blake2b(address, key=key, person=b"ops-request", digest_size=SIGNATURE_BYTES)
    signature.update(request)
    return signature.digest()


def is_signed_with(signature: bytes, key: bytes, address: bytes, request: bytes) -> bool:
    """Return whether a signature of a request and its address was made with a key."""
    return hmac.compare_digest(signature, sign(key, address, request))


def _stretch(secret: bytes) -> bytes:
    if len(secret) < _LEAST_SECRET:
        raise ValueError(f"the secret has {len(secret)} bytes: expected at least {_LEAST_SECRET} random bytes")
    return hashlib.blake2b(secret, person=b"operations").digest()


def _derive(secret: bytes, data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret, person=purpose, digest_size=32).digest()
