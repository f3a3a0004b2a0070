"""API keys: made here, shown once, kept as hashes in a file that `ops keys` writes."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.tokens import Principal

_KEY = re.compile(r"ops_([A-Za-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LARGEST_FILE = 16 << 20
_NO_DIGEST = b"\0" * 32


class APIKey(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is kept of a key: whose it is and a hash of its secret, never the secret."""

    id: str
    identity: str
    sha256: str
    """Of the whole key. Its secret has 256 random bits, so that one hash is enough."""
    scopes: Sequence[str] = ()
    resources: Mapping[str, Sequence[str]] = {}
    created_at: float
    expires_at: float | None = None


class APIKeys:
    """The keys of a file: an Authenticator that notices when the file changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._version: tuple[int, int, int] | None = None
        self._keys: dict[str, APIKey] = {}

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal of a key; raises `ACCESS_DENIED` for one that is unknown, revoked or expired."""
        self.has_changed()
        match = _KEY.fullmatch(token or "")
        key = self._keys.get(match[1]) if match is not None else None
        known = bytes.fromhex(key.sha256) if key is not None else _NO_DIGEST
        is_right = hmac.compare_digest(known, sha256((token or "").encode(errors="replace")).digest())
        if key is None or not is_right or (key.expires_at is not None and key.expires_at <= time.time()):
            raise CallError(ErrorCode.ACCESS_DENIED, "the API key is not valid")
        identity = Identity(key.identity, tuple(key.scopes), key.resources, {"keyId": key.id})
        return Principal(identity, (), key.expires_at)

    def has_changed(self) -> bool:
        """Read the file where it has changed since it was last read; True where it had."""
        version = _version_of(self.path)
        if version == self._version:
            return False
        self._keys = {key.id: key for key in self.entries()}
        self._version = version
        return True

    def entries(self) -> list[APIKey]:
        """Return what the file keeps, in the order of creation."""
        try:
            if self.path.stat().st_size > _LARGEST_FILE:
                raise CallError(ErrorCode.VALIDATION_ERROR, f"{self.path} is too large for a file of API keys")
            return msgspec.json.decode(self.path.read_bytes(), type=list[APIKey])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{self.path} is no file of API keys: {error}") from None

    def create(
        self,
        identity: str,
        *,
        scopes: Iterable[str] = (),
        resources: Mapping[str, Sequence[str]] | None = None,
        lifetime: float | None = None,
    ) -> tuple[str, APIKey]:
        """Make a key and keep its hash; returns the key, which cannot be read again, and what is kept."""
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
        """Forget a key; False where there is none with this id."""
        keys = self.entries()
        left = [key for key in keys if key.id != key_id]
        if len(left) == len(keys):
            return False
        self._write(left)
        return True

    def _write(self, keys: list[APIKey]) -> None:
        """Replace the file in one step, readable by its owner only."""
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
