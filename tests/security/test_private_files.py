"""Files that may contain secrets are readable by their owner only, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from operations import OperationRegistry
from operations.config import load_config, open_workspace, store_catalogue
from operations.config.trust import store_trust
from operations.identity.api_keys import APIKeys
from operations.recording import FileRecorder
from operations.telemetry.audit import AuditLog
from operations.testing import stub_operation


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_files_with_secrets_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "private" / variable))
    private = tmp_path / "private"
    private.mkdir()
    APIKeys(private / "keys.json").create("robot")
    with AuditLog(private / "audit.jsonl") as audit, FileRecorder(private / "calls.jsonl") as recorder:
        registry = OperationRegistry([stub_operation("a.b")], interceptors=[recorder], observers=[audit])
        await registry.execute("a.b", {})
    (tmp_path / "code").mkdir()
    (tmp_path / "operations.toml").write_text('[sources.code]\npython = "code"\n')
    config = load_config(tmp_path / "operations.toml")
    async with open_workspace(config) as workspace:
        assert store_catalogue(workspace) is not None
    store_trust(config.path, "digest", by="ada")
    files = [path for path in private.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {path.name: 0o600 for path in files}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files if path.parent != private} == {0o700}
