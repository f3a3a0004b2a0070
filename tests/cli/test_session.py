"""Placeholders for operations of sources that are opened on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.cli.session import LazySources, SourceOpening
from operations.config import load_catalogue, load_config, open_workspace, store_catalogue
from tests.cli.conftest import make_project


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    make_project(tmp_path)
    return tmp_path


async def test_the_first_call_opens_a_source_and_later_ones_find_it_open(directory: Path) -> None:
    mark = directory / "imported"
    module = directory / "other" / "numbers.py"
    module.write_text(f"with open({str(mark)!r}, 'a') as mark: mark.write('x')\n{module.read_text()}")
    config = load_config(directory / "operations.toml")
    async with open_workspace(config) as workspace:
        store_catalogue(workspace)
    catalogue = load_catalogue(config.path)
    assert catalogue is not None
    before = mark.read_text()
    async with (
        open_workspace(config, only=["shop"]) as workspace,
        LazySources(SourceOpening(config), workspace.registry) as lazy,
    ):
        assert "other.double" not in workspace.registry
        lazy.register(catalogue)
        assert mark.read_text() == before
        assert (await workspace.registry.execute("other.double", {"value": 2})).data == 4.0
        assert len(mark.read_text()) > len(before)
        opened = mark.read_text()
        assert (await workspace.registry.execute("shop.nested")).data == 5.0
        assert mark.read_text() == opened
        with pytest.raises(CallError) as raised:
            await workspace.registry.execute("other.double", {"value": "x"})
        assert raised.value.code is ErrorCode.VALIDATION_ERROR


async def test_streams_have_placeholders_too(directory: Path) -> None:
    config = load_config(directory / "operations.toml")
    async with open_workspace(config) as workspace:
        store_catalogue(workspace)
    catalogue = load_catalogue(config.path)
    assert catalogue is not None
    async with (
        open_workspace(config, only=["other"]) as workspace,
        LazySources(SourceOpening(config), workspace.registry) as lazy,
    ):
        lazy.register(catalogue)
        events = workspace.registry.subscribe("shop.ticks", {"count": 2, "interval": 0})
        assert [event.data async for event in events] == [{"n": 0}, {"n": 1}]


async def test_a_source_that_fails_or_lost_the_operation_is_reported(directory: Path) -> None:
    config = load_config(directory / "operations.toml")
    async with open_workspace(config) as workspace:
        store_catalogue(workspace)
    catalogue = load_catalogue(config.path)
    assert catalogue is not None
    (directory / "other" / "numbers.py").write_text("")
    async with (
        open_workspace(config, only=["shop"]) as workspace,
        LazySources(SourceOpening(config), workspace.registry) as lazy,
    ):
        lazy.register(catalogue)
        with pytest.raises(CallError) as raised:
            await workspace.registry.execute("other.double", {"value": 2})
        assert raised.value.code is ErrorCode.OPERATION_NOT_FOUND
    (directory / "other" / "numbers.py").unlink()
    (directory / "other").rmdir()
    async with (
        open_workspace(config, only=["shop"]) as workspace,
        LazySources(SourceOpening(config), workspace.registry) as lazy,
    ):
        lazy.register(catalogue)
        with pytest.raises(CallError) as raised:
            await workspace.registry.execute("other.double", {"value": 2})
        assert raised.value.code is ErrorCode.UNAVAILABLE
        assert "other" in raised.value.message
