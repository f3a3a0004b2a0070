"""API keys: created once, shown once, and stored as hashes in a file that `ops keys` writes."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.tokens import Principal
from operations.local_files import write_atomically

_KEY = re.compile(r"ops_([A-Za-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_MAX_FILE_BYTES = 16 << 20
_NO_DIGEST = b"\0" * 32


class APIKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The stored part of a key: its owner and a hash, never the secret."""

    id: str
    identity: str
    sha256: str
    """The hash of the whole key. The secret has 256 random bits, so no slow hash is needed."""
    scopes: Sequence[str] = ()
    resources: Mapping[str, Sequence[str]] = {}
    created_at: float
    expires_at: float | None = None


class APIKeys:
    """An authenticator for the keys of a file. It reads the file again when the file changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._version: tuple[int, int, int] | None = None
        self._keys: dict[str, APIKey] = {}
        self._has_changed = False

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal of a key; raise `ACCESS_DENIED` for an unknown, revoked or expired key."""
        self._read_again()
        match = _KEY.fullmatch(token or "")
        key = self._keys.get(match[1]) if match is not None else None
        known = bytes.fromhex(key.sha256) if key is not None else _NO_DIGEST
        is_right = hmac.compare_digest(known, sha256((token or "").encode(errors="replace")).digest())
        if key is None or not is_right or (key.expires_at is not None and key.expires_at <= time.time()):
            raise CallError(ErrorCode.ACCESS_DENIED, "invalid API key")
        identity = Identity(key.identity, tuple(key.scopes), key.resources, {"keyId": key.id})
        return Principal(identity, (), key.expires_at)

    def has_changed(self) -> bool:
        """Read the file again if it has changed; return whether it has changed since the previous call."""
        self._read_again()
        changed, self._has_changed = self._has_changed, False
        return changed

    def _read_again(self) -> None:
        version = _version_of(self.path)
        if version != self._version:
            self._keys = {key.id: key for key in self.entries()}
            self._has_changed |= self._version is not None  # reading the file for the first time revokes no key
            self._version = version

    def entries(self) -> list[APIKey]:
        """Return the stored keys in the order of their creation."""
        try:
            if self.path.stat().st_size > _MAX_FILE_BYTES:
                raise CallError(
                    ErrorCode.VALIDATION_ERROR,
                    f"{self.path} is not a file of API keys: it is larger than {_MAX_FILE_BYTES:,} bytes",
                )
            return msgspec.json.decode(self.path.read_bytes(), type=list[APIKey])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{self.path} is not a file of API keys: {error}") from None

    def create(
        self,
        identity: str,
        *,
        scopes: Iterable[str] = (),
        resources: Mapping[str, Sequence[str]] | None = None,
        lifetime: float | None = None,
    ) -> tuple[str, APIKey]:
        """Create a key and store its hash. Return the key, which cannot be read again, and the stored part."""
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(12))
        token = f"ops_{key_id}_{secrets.token_urlsafe(32)}"
        now = time.time()
        kept = APIKey(
            id=key_id,
            identity=identity,
            sha256=sha256(token.encode()).hexdigest(),
            scopes=tuple(scopes),
            resources=resources or {},
            created_at=round(now, 3),
            expires_at=None if lifetime is None else round(now + lifetime, 3),
        )
        self._write([*self.entries(), kept])
        return token, kept

    def revoke(self, key_id: str) -> bool:
        """Remove a key; return False if there is no key with this id."""
        keys = self.entries()
        left = [key for key in keys if key.id != key_id]
        if len(left) == len(keys):
            return False
        self._write(left)
        return True

    def _write(self, keys: list[APIKey]) -> None:
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n", is_private=True)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
