"""Tokens of an issuer whose keys are fetched."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPRequest
from operations.identity.issuer_tokens import IssuerTokens

ISSUER = "https://login.example.com/tenant"
AUDIENCE = "https://api.example.com"


class Key:
    """A key of the issuer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.private = ec.generate_private_key(ec.SECP256R1())

    @property
    def public(self) -> dict[str, Any]:
        text: Any = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key())
        return {**json.loads(text), "kid": self.name, "alg": "ES256", "use": "sig"}

    def sign(self, **claims: Any) -> str:
        payload = {"sub": "ada", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "scope": "read", **claims}
        return jwt.encode(payload, self.private, algorithm="ES256", headers={"kid": self.name})


class Issuer:
    """What an HTTP client sees of the issuer."""

    def __init__(self, *keys: Key) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.is_down = False
        self.metadata: dict[str, Any] = {"issuer": ISSUER, "jwks_uri": "https://login.example.com/keys"}

    @asynccontextmanager
    async def send(self, request: HTTPRequest) -> AsyncIterator[Any]:
        self.asked.append(request.url)
        await asyncio.sleep(0)
        if self.is_down:
            raise CallError(ErrorCode.UNAVAILABLE, "down")
        if request.url.endswith("/keys"):
            yield _Response(200, {"keys": [key.public for key in self.keys]})
        elif request.url.endswith("/.well-known/oauth-authorization-server/tenant"):
            yield _Response(200, self.metadata)
        else:
            yield _Response(404, {})

    async def close(self) -> None:
        return None


class _Response:
    def __init__(self, status: int, data: Any) -> None:
        self.status = status
        self.headers: Sequence[tuple[str, str]] = ()
        self.url = ""
        self._data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        yield json.dumps(self._data).encode()

    async def close(self) -> None:
        return None


def tokens(issuer: Issuer, now: list[float] | None = None) -> IssuerTokens:
    clock = (lambda: now[0]) if now is not None else time.monotonic
    return IssuerTokens(ISSUER, audience=AUDIENCE, client=issuer, clock=clock)


async def test_keys_are_found_by_the_metadata_and_fetched_once() -> None:
    key = Key("a")
    issuer = Issuer(key)
    accepted = tokens(issuer)
    principals = await asyncio.gather(*(accepted.authenticate(key.sign()) for _ in range(20)))
    assert {each.identity.id for each in principals} == {"ada"}
    assert list(principals[0].audiences) == [AUDIENCE]
    assert issuer.asked.count("https://login.example.com/keys") == 1
    assert len(issuer.asked) == 3


async def test_tokens_not_signed_by_the_issuer_for_this_audience_are_rejected() -> None:
    key = Key("a")
    accepted = tokens(Issuer(key))
    forged = Key("a").sign()
    for token in (
        forged,
        key.sign(aud="https://other.example.com"),
        key.sign(iss="https://evil.example.com"),
        key.sign(exp=time.time() - 100),
        jwt.encode({"sub": "ada", "exp": 9e9, "aud": AUDIENCE, "iss": ISSUER}, "", algorithm="none"),
        jwt.encode({"sub": "ada", "exp": 9e9, "aud": AUDIENCE, "iss": ISSUER}, "k" * 32, algorithm="HS256"),
        "garbage",
        None,
    ):
        with pytest.raises(CallError) as refused:
            await accepted.authenticate(token)
        assert refused.value.code is ErrorCode.ACCESS_DENIED


async def test_a_new_key_is_fetched_but_unknown_ones_not_too_often() -> None:
    old, new = Key("old"), Key("new")
    issuer, now = Issuer(old), [0.0]
    accepted = tokens(issuer, now)
    await accepted.authenticate(old.sign())
    issuer.keys = [new]
    asked = len(issuer.asked)
    for _ in range(10):
        with pytest.raises(CallError):
            await accepted.authenticate(new.sign())
    assert len(issuer.asked) == asked
    now[0] = 31.0
    assert (await accepted.authenticate(new.sign())).identity.id == "ada"
    with pytest.raises(CallError):
        await accepted.authenticate(old.sign())


async def test_known_keys_stay_valid_while_the_issuer_is_down() -> None:
    key = Key("a")
    issuer, now = Issuer(key), [0.0]
    accepted = tokens(issuer, now)
    await accepted.authenticate(key.sign())
    issuer.is_down, now[0] = True, 1_000.0
    assert (await accepted.authenticate(key.sign())).identity.id == "ada"


async def test_without_keys_no_caller_is_refused_permanently() -> None:
    key = Key("a")
    issuer, now = Issuer(key), [0.0]
    issuer.is_down = True
    accepted = tokens(issuer, now)
    with pytest.raises(CallError) as refused:
        await accepted.authenticate(key.sign())
    assert refused.value.code is ErrorCode.UNAVAILABLE
    issuer.is_down, now[0] = False, 31.0
    assert (await accepted.authenticate(key.sign())).identity.id == "ada"


async def test_metadata_of_another_issuer_or_an_insecure_url_is_not_accepted() -> None:
    for metadata in (
        {"issuer": "https://evil.example.com", "jwks_uri": "https://login.example.com/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://login.example.com/keys"},
        {"issuer": ISSUER},
    ):
        key = Key("a")
        issuer = Issuer(key)
        issuer.metadata = metadata
        with pytest.raises(CallError) as refused:
            await tokens(issuer).authenticate(key.sign())
        assert refused.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(ValueError, match="expected https"):
        IssuerTokens("http://login.example.com", audience=AUDIENCE)
    with pytest.raises(ValueError, match="missing audience"):
        IssuerTokens(ISSUER, audience=[])
