"""Certificates, keys and tokens made for a test, as a NATS operator would make them."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
import os
import ssl
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from operations.pubsub.nats.credentials import _SEED, _USER, _write_key


class Certificates:
    """A certificate for 127.0.0.1, signed by its own authority."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.certificate, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
        ca = (
            _builder(ca_name, ca_name, ca_key.public_key())
            .add_extension(basic, critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
        )
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        own = _builder(name, ca_name, server_key.public_key())
        own = own.add_extension(alternative, critical=False).add_extension(by, critical=False)
        self.authority.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.certificate.write_bytes(own.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    @property
    def config(self) -> str:
        return f'cert_file: "{self.certificate}", key_file: "{self.key}"'

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


class Signer:
    """An operator, account or user of NATS's decentralised authentication."""

    def __init__(self, kind: str) -> None:
        prefix = {"operator": 14 << 3, "account": 0, "user": 20 << 3}[kind]
        self.kind = kind
        self._raw = os.urandom(32)
        self._key = Ed25519PrivateKey.from_private_bytes(self._raw)
        self.public = _write_key(bytes([prefix]) + self._key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        return _write_key(bytes([_SEED | (_USER >> 5), (_USER & 31) << 3]) + self._raw)

    def sign(self, subject: Signer, **claims: Any) -> str:
        body = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": subject.kind,
            "sub": subject.public,
            "nats": {"type": subject.kind, "version": 2, **claims},
        }
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        text = ".".join(_part(each) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
        signature = base64.urlsafe_b64encode(self._key.sign(text.encode())).decode().rstrip("=")
        return f"{text}.{signature}"


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def write_credentials(path: Path, token: str, seed: str) -> Path:
    """A `.creds` file as NATS's tools write it."""
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return path
