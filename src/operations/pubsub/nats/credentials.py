"""Credentials for a NATS server: a password, a token, an nkey, or a credentials file; keys need `cryptography`."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any

import msgspec

from operations.pubsub.connection_errors import require_extra

_USER = 20 << 3
_SEED = 18 << 3
_BLOCK = re.compile(r"-+BEGIN ([A-Z ]+?)-+\s*([A-Za-z0-9+/=._-]+)\s*-+END", re.S)


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials that CONNECT sends; the repr shows no secret."""

    user: str | None = None
    password: str | None = None
    token: str | None = None
    jwt: str | None = None
    seed: str | None = None

    def __repr__(self) -> str:
        return "<NATS credentials>"

    def answer(self, nonce: str) -> dict[str, Any]:
        """Return the credentials as fields of CONNECT; a key signs the server's nonce."""
        fields: dict[str, Any] = {
            "user": self.user,
            "pass": self.password,
            "auth_token": self.token,
            "jwt": self.jwt,
        }
        if self.seed is not None and nonce:
            key = NKey(self.seed)
            fields["sig"] = key.sign(nonce.encode())
            if self.jwt is None:
                fields["nkey"] = key.public
        return {name: value for name, value in fields.items() if value is not None}


class NKey:
    """A NATS user's Ed25519 key, made from its seed."""

    def __init__(self, seed: str) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError:
            raise require_extra("cryptography", "nats") from None
        self._key = Ed25519PrivateKey.from_private_bytes(_read_seed(seed))

    @property
    def public(self) -> str:
        """The public key as NATS writes it: `U…`."""
        return _write_key(bytes([_USER]) + self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> str:
        """Return a signature, in base64 without padding."""
        return base64.urlsafe_b64encode(self._key.sign(data)).decode().rstrip("=")


def read_credentials(path: str | Path) -> Credentials:
    """Return the JWT and the seed of a `.creds` file."""
    blocks = dict(_BLOCK.findall(Path(path).read_text()))
    try:
        return Credentials(jwt=blocks["NATS USER JWT"], seed=blocks["USER NKEY SEED"])
    except KeyError as missing:
        raise ValueError(f"{path} is not a NATS credentials file: it has no {missing.args[0]} block") from None


def read_seed(value: str | Path) -> str:
    """Return a seed unchanged, or the seed that a file contains."""
    text = str(value)
    return text if re.fullmatch(r"SU[A-Z2-7]{56}", text) else Path(text).read_text().strip()


def _read_seed(seed: str) -> bytes:
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 36 or raw[0] & 0xF8 != _SEED or _checksum(raw[:-2]) != raw[-2:]:
        raise ValueError("invalid nkey seed: expected SU, 56 more characters and a valid checksum")
    return raw[2:-2]


def _write_key(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")
