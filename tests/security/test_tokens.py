"""Guarantee: a connection without a valid token is refused with 401, for any content of its header."""

from __future__ import annotations

import base64
import itertools
import string
import time
from pathlib import Path

import jwt
import msgspec
import pytest

from operations import CallError, ErrorCode, Identity
from operations.calls.hub import Hub, asgi
from operations.identity import Authenticator, JWTTokens, Principal, StaticTokens
from tests.calls.test_hub_asgi import HELLO, Socket
from tests.cli.driving import Project
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

STATIC = StaticTokens({"s3cret": Principal(Identity("ada"))})
JWT = JWTTokens("a key of at least thirty-two bytes!", algorithms=["HS256"])


@pytest.mark.parametrize("token", ["", " ", " s3cret", "s3cret ", "schl\u00fcssel", "line\n", "\ud800"])
def test_a_token_that_cannot_be_sent_is_rejected_as_a_setting(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        StaticTokens({token: Principal(Identity("anybody"))})


_ALPHABET = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}-_"
_NEXT = dict(itertools.pairwise(_ALPHABET))
ODD: list[str | None] = [None, "", " ", "?", "schl\u00fcssel", "\ud800", "a.b.\ud800", "\x00", "s3cret\n"]


@pytest.mark.parametrize("authenticator", [STATIC, JWT], ids=["static", "jwt"])
@pytest.mark.parametrize("token", ODD, ids=map(repr, ODD))
def test_any_other_text_is_access_denied(authenticator: Authenticator, token: str | None) -> None:
    with pytest.raises(CallError) as caught:
        authenticator.authenticate(token)
    assert caught.value.code is ErrorCode.ACCESS_DENIED


DEEP = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 10_000).decode().rstrip("=") + ".e30.e30"


def test_a_header_of_a_token_that_is_nested_deeply_is_access_denied() -> None:
    with pytest.raises(CallError) as caught:
        JWT.authenticate(DEEP)
    assert caught.value.code is ErrorCode.ACCESS_DENIED


@pytest.mark.parametrize("change", ["last bits", "other characters", "alphabet", "padding"])
def test_a_token_has_only_one_spelling(change: str) -> None:
    key, sub = "a key of at least thirty-two bytes!", "ada"
    signed = (jwt.encode({"sub": f"{sub}{n}", "exp": time.time() + 60}, key, "HS256") for n in range(100))
    token = next(each for each in signed if "-" in each.rpartition(".")[2])
    assert JWT.authenticate(token).identity.id.startswith(sub)
    start, dot, signature = token.rpartition(".")
    changed = {
        "last bits": signature[:-1] + _NEXT[signature[-1]],  # the last two bits are not part of the signature
        "other characters": f"{signature[:10]}!!!!{signature[10:]}",
        "alphabet": signature.replace("-", "+"),
        "padding": f"{signature}=",
    }[change]
    with pytest.raises(CallError, match="invalid token"):
        JWT.authenticate(f"{start}{dot}{changed}")


HEADERS = [
    b"X-Nothing: 1",
    b"Authorization: Bearer",
    b"Authorization: Bearer ",
    b"Authorization: Bearer schl\xc3\xbcssel",
    b"Authorization: Bearer schl\xfcssel",
    b"Authorization: Bearer \xed\xa0\x80",
    b"Authorization: Bearer \xff.\xff.\xff",
    b"Authorization: Basic s3cret",
    b"Sec-WebSocket-Protocol: operations.v1, bearer.",
    b"Sec-WebSocket-Protocol: operations.v1, bearer.\xff\xfe",
]


@pytest.mark.parametrize("authenticator", [STATIC, JWT], ids=["static", "jwt"])
async def test_every_such_handshake_is_401(authenticator: Authenticator) -> None:
    async with Hub(authenticator) as hub:
        for header in HEADERS:
            peer = await RawPeer.connect(hub.port, header)
            assert peer.status == 401, header
            await peer.close()
        assert hub.connected == []


async def test_an_expired_token_gives_no_more_rights_while_its_peer_delays_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi, "CLOSE_SECONDS", 60.0)
    hub = Hub(StaticTokens({"ada": Principal(Identity("ada"), expires_at=time.time() + 0.5)}))
    socket = Socket()
    async with socket.served_by(hub) as task:
        socket.say(HELLO)
        await until(lambda: len(socket.sent) == 2)
        socket.reads.clear()  # the peer reads nothing, so that the connection stays open
        await until(lambda: hub.connected == [])
        request = {"v": 1, "type": "call.requested", "id": "a", "to": "no.where", "payload": {}}
        socket.say(msgspec.json.encode(request).decode())
        await until(socket.events.empty)
        assert not task.done()
        socket.reads.set()
        await until(task.done)
    assert [event["type"] for event in socket.sent[2:]] == ["websocket.close"], "the request got no response"


def test_an_empty_token_file_does_not_serve_without_a_token(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", "[hub]\nport = 0\n")
    project.write("token", " \n")
    for words in (["serve", "--http", "127.0.0.1:0"], ["hub"]):
        done = project.run(*words, "--token-file", "token")
        assert done.code == 2, done
        assert "token has no token" in done.err
