"""`ops install`: an editor's file gets the server and keeps everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from operations.cli.commands.install import EDITORS, editor_file, server_entry, with_server, write_editor_file
from operations.cli.failures import CommandError
from operations.cli.main import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.delenv("OPERATIONS_TRUST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home" / "state"))
    assert main(["init", "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("editor", EDITORS)
def test_the_server_is_added_once_and_the_rest_is_kept(project: Path, editor: str) -> None:
    path = editor_file(editor, project)
    member = "servers" if editor == "vscode" else "mcpServers"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"other": [1], member: {"files": {"command": "npx"}}}))
    path.chmod(0o600)
    assert main(["install", editor, "--quiet"]) == 0
    written = json.loads(path.read_text())
    assert written["other"] == [1]
    assert written[member]["files"] == {"command": "npx"}
    entry = written[member]["my-shop"]
    assert entry["args"][-4:] == ["serve", "--mcp", "--config", str(project / "operations.toml")]
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_mtime_ns
    assert main(["install", editor, "--quiet"]) == 0
    assert path.stat().st_mtime_ns == before
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(f".{path.name}.")] == []


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "claude-code", "--dry-run"]) == 0
    assert not (project / ".mcp.json").exists()
    assert "would be added to" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["// a comment\n{}", "[]", '{"mcpServers": []}', "\xff"])
def test_an_unreadable_file_is_unchanged(project: Path, text: str) -> None:
    path = project / ".mcp.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["install", "claude-code", "--quiet"]) != 0
    assert path.read_bytes() == text.encode("latin-1")


def test_another_server_of_that_name_is_replaced_only_on_request(project: Path) -> None:
    path = project / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"my-shop": {"command": "mine"}}}))
    assert main(["install", "claude-code", "--quiet"]) == 2
    assert json.loads(path.read_text())["mcpServers"]["my-shop"] == {"command": "mine"}
    assert main(["install", "claude-code", "--quiet", "--replace"]) == 0
    assert json.loads(path.read_text())["mcpServers"]["my-shop"]["type"] == "stdio"


def test_an_untrusted_configuration_is_not_installed(project: Path) -> None:
    assert main(["trust", "--revoke", "--quiet"]) == 0
    assert main(["install", "cursor", "--quiet"]) == 4
    assert not (project / ".cursor").exists()


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    write_editor_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_file_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        target: Path = Path("/proc/nothing/mcp.json")
    else:
        target = tmp_path / "locked" / "mcp.json"
        target.parent.mkdir(mode=0o500)
    with pytest.raises(CommandError):
        write_editor_file(target, "x")


def test_an_existing_entry_is_not_written_again() -> None:
    entry: dict[str, Any] = server_entry("cursor", Path("/a/operations.toml"))
    first, state = with_server({}, "cursor", "x", entry, replace=False, path=Path("f"))
    assert state == "added"
    assert with_server(first, "cursor", "x", entry, replace=False, path=Path("f")) == (first, "unchanged")
