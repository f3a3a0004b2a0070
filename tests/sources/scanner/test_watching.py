"""watch_operations: changed operations are replaced, others stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from operations import OperationRegistry
from operations.sources.scanner import ManifestChange, watch_operations
from tests.sources.scanner.projects import MemoryFS, greeting, write


@contextlib.asynccontextmanager
async def watching(path: Path | str, registry: OperationRegistry) -> AsyncIterator[asyncio.Queue[ManifestChange]]:
    changes: asyncio.Queue[ManifestChange] = asyncio.Queue()
    task = asyncio.create_task(watch_operations(path, changes.put, registry=registry, interval=0.01))
    try:
        async with asyncio.timeout(30):
            yield changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await registry.close()


async def call(registry: OperationRegistry, operation_id: str) -> Any:
    return (await registry.execute(operation_id, {"who": "Ada"})).data


async def test_a_changed_module_replaces_its_operations_and_no_others(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": greeting("one"), "b.py": greeting("other")})
    registry = OperationRegistry()
    async with watching(tmp_path, registry) as changes:
        first = await changes.get()
        assert first.added == ["a.greet", "b.greet"]
        untouched = registry.get_operation("b.greet")
        write(tmp_path, {"a.py": greeting("two")})
        change = await changes.get()
        assert (change.added, change.replaced, change.removed) == ([], ["a.greet"], [])
        assert await call(registry, "a.greet") == "two Ada"
        assert registry.get_operation("b.greet") is untouched


async def test_modules_come_and_go(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": greeting()})
    registry = OperationRegistry()
    async with watching(tmp_path, registry) as changes:
        await changes.get()
        write(tmp_path, {"deep/er/b.py": greeting()})
        while "deep.er.b.greet" not in registry:
            await changes.get()
        (tmp_path / "a.py").unlink()
        while "a.greet" in registry:
            await changes.get()
        assert [spec.id for spec in registry.list()] == ["deep.er.b.greet"]


async def test_importers_of_a_changed_module_are_imported_again(tmp_path: Path) -> None:
    uses = "from operations import operation\nfrom .words import WORD\n@operation\ndef say() -> str:\n    return WORD\n"
    write(tmp_path, {"words.py": "WORD = 'one'", "uses.py": uses, "other.py": greeting()})
    registry = OperationRegistry()
    async with watching(tmp_path, registry) as changes:
        await changes.get()
        other = registry.get_operation("other.greet")
        write(tmp_path, {"words.py": "WORD = 'two!'"})
        change = await changes.get()
        assert change.replaced == ["uses.say"]
        assert (await registry.execute("uses.say")).data == "two!"
        assert registry.get_operation("other.greet") is other


async def test_a_broken_module_keeps_its_operations_until_it_is_fixed(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": greeting("one")})
    registry = OperationRegistry()
    async with watching(tmp_path, registry) as changes:
        await changes.get()
        write(tmp_path, {"a.py": "def half("})
        change = await changes.get()
        assert (change.added, change.replaced, change.removed) == ([], [], [])
        assert "syntax error" in change.skipped[0].reason
        assert await call(registry, "a.greet") == "one Ada"
        write(tmp_path, {"a.py": greeting("mended")})
        assert (await changes.get()).skipped == []
        assert await call(registry, "a.greet") == "mended Ada"


async def test_a_package_by_name_and_its_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"watchedpkg/__init__.py": greeting("one"), "watchedpkg/sub.py": greeting()})
    monkeypatch.syspath_prepend(tmp_path)
    registry = OperationRegistry()
    async with watching("watchedpkg", registry) as changes:
        assert (await changes.get()).added == ["watchedpkg.greet", "watchedpkg.sub.greet"]
        write(tmp_path, {"watchedpkg/__init__.py": greeting("two")})
        assert (await changes.get()).replaced == ["watchedpkg.greet"]
        assert await call(registry, "watchedpkg.greet") == "two Ada"
        import watchedpkg  # type: ignore[import-not-found]

        assert watchedpkg.sub.greet is registry.get_operation("watchedpkg.sub.greet")


async def test_operations_of_other_sources_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.sources.scanner.elsewhere import ping

    write(tmp_path, {"a.py": f"from operations import operation\n@operation('{ping.id}')\nasync def f() -> int: ...\n"})
    registry = OperationRegistry([ping])
    async with watching(tmp_path, registry) as changes:
        await changes.get()
        assert registry.get_operation(ping.id) is ping
        assert "which another source has registered" in caplog.text
        (tmp_path / "a.py").unlink()
        assert (await changes.get()).removed == [ping.id]
        assert registry.get_operation(ping.id) is ping


async def test_files_of_a_file_system_without_stamps_are_watched_by_their_content() -> None:
    fs = MemoryFS({"virtual/a.py": greeting("one")})
    registry = OperationRegistry()
    changes: asyncio.Queue[ManifestChange] = asyncio.Queue()
    watch = watch_operations("virtual", changes.put, registry=registry, fs=fs, interval=0.01)
    task = asyncio.create_task(watch)
    async with asyncio.timeout(30):
        await changes.get()
        fs.files["virtual/a.py"] = greeting("two")
        assert (await changes.get()).replaced == ["a.greet"]
        assert await call(registry, "a.greet") == "two Ada"
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await registry.close()


async def test_a_spec_keeps_the_handler_that_was_registered_for_it(tmp_path: Path) -> None:
    spec = (
        "from operations import OperationSpec\nS = OperationSpec(name='s', namespace='n', type='query', title='{}')\n"
    )
    write(tmp_path, {"a.py": spec.format("one")})
    registry = OperationRegistry()
    async with watching(tmp_path, registry) as changes:
        await changes.get()
        registry.register_handler("n.s", lambda input, context: "answered", inline=True)
        write(tmp_path, {"a.py": spec.format("number two")})
        assert (await changes.get()).replaced == ["n.s"]
        found = registry.get_spec("n.s")
        assert found is not None
        assert found.title == "number two"
        assert (await registry.execute("n.s")).data == "answered"
