"""API keys: stored as hashes, revoked immediately, limited in time."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from operations.errors import CallError, ErrorCode
from operations.identity.api_keys import APIKeys


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token, kept = APIKeys(path).create("robot", scopes=["read"], resources={"repo:1": ["push"]})
    text = path.read_text()
    assert token.startswith(f"ops_{kept.id}_")
    assert token not in text
    assert token.rpartition("_")[2] not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    principal = APIKeys(path).authenticate(token)
    assert (principal.identity.id, list(principal.identity.scopes)) == ("robot", ["read"])
    assert principal.identity.resources == {"repo:1": ["push"]}
    assert principal.namespaces == ()


def test_an_invalid_key_is_refused(tmp_path: Path) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    token, kept = keys.create("robot")
    other, _ = keys.create("other")
    last = "A" if token[-1] != "A" else "B"
    wrong = ["", None, "x", token[:-1], token + "A", f"{token[:-1]}{last}", f"ops_{kept.id}_{other.rpartition('_')[2]}"]
    for each in [*wrong, token.replace("ops_", "OPS_"), f" {token}", f"{token}\n", "ops_" + "é" * 12]:
        with pytest.raises(CallError) as refused:
            keys.authenticate(each)
        assert refused.value.code is ErrorCode.ACCESS_DENIED


def test_a_revoked_key_is_refused_by_a_process_that_read_it_before(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    server = APIKeys(path)
    token, kept = APIKeys(path).create("robot")
    server.authenticate(token)
    assert not server.has_changed()
    assert APIKeys(path).revoke(kept.id)
    assert not APIKeys(path).revoke(kept.id)
    with pytest.raises(CallError):
        server.authenticate(token)


def test_a_key_expires(tmp_path: Path) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    token, kept = keys.create("robot", lifetime=1_000)
    assert keys.authenticate(token).expires_at == kept.expires_at
    expired, _ = keys.create("late", lifetime=-1)
    assert time.time() > 0
    with pytest.raises(CallError):
        keys.authenticate(expired)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{")
    with pytest.raises(CallError, match="is not a file of API keys"):
        APIKeys(path).entries()
