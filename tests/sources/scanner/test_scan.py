"""scan_operations: operations found, and their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from operations import CallError, ErrorCode, OperationRegistry
from operations.sources.scanner import scan_operations
from tests.sources.scanner.projects import MemoryFS, greeting, write


async def test_a_directory_has_the_operations_of_its_modules_named_by_path(tmp_path: Path) -> None:
    write(tmp_path, {"hello.py": greeting(), "shop/billing/invoices.py": greeting("billed", "create")})
    manifest = scan_operations(tmp_path)
    assert sorted(operation.id for operation in manifest.operations) == ["hello.greet", "shop.billing.invoices.create"]
    assert manifest.skipped == []
    assert manifest.origins["hello.greet"] == str(tmp_path / "hello.py")
    registry = OperationRegistry(manifest.operations)
    assert (await registry.execute("shop.billing.invoices.create", {"who": "Ada"})).data == "billed Ada"
    await registry.close()


async def test_modules_of_one_file_name_never_meet(tmp_path: Path) -> None:
    write(tmp_path, {"a/tools.py": greeting("from a"), "b/tools.py": greeting("from b"), "json.py": greeting("own")})
    manifest = scan_operations(tmp_path)
    again = scan_operations(tmp_path / "a")
    registry = OperationRegistry([*manifest.operations, *again.operations])
    assert [spec.id for spec in registry.list()] == ["a.tools.greet", "b.tools.greet", "json.greet", "tools.greet"]
    assert (await registry.execute("a.tools.greet", {"who": "x"})).data == "from a x"
    assert (await registry.execute("b.tools.greet", {"who": "x"})).data == "from b x"
    assert "tools" not in sys.modules
    assert not hasattr(sys.modules["json"], "greet")
    await registry.close()


async def test_relative_imports_work_inside_packages_also_above_the_scanned_directory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "shop/__init__.py": "NAME = 'shop'",
            "shop/db.py": "from . import NAME\ndef connect(): return f'{NAME} db'",
            "shop/operations/__init__.py": "",
            "shop/operations/stock.py": """
                from operations import operation
                from ..db import connect

                @operation(type="query")
                async def left() -> str:
                    from .. import db  # also when it is called
                    return connect() + str(db is not None)
                """,
        },
    )
    manifest = scan_operations(tmp_path / "shop" / "operations")
    assert manifest.skipped == []
    registry = OperationRegistry(manifest.operations)
    assert (await registry.execute("stock.left")).data == "shop dbTrue"


async def test_types_of_a_scanned_module_resolve_with_postponed_annotations(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": """
                from __future__ import annotations
                from dataclasses import dataclass
                import msgspec
                from operations import operation

                @dataclass
                class Point:
                    x: int
                    near: list[Point]

                class Line(msgspec.Struct):
                    start: Point

                @operation
                async def draw(line: Line) -> Point:
                    return line.start
                """
        },
    )
    manifest = scan_operations(tmp_path)
    assert manifest.skipped == []
    line = {"start": {"x": 1, "near": []}}
    assert (await OperationRegistry(manifest.operations).execute("a.draw", {"line": line})).data == line["start"]


def test_a_package_is_scanned_by_its_name_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path,
        {
            "scanpkg/__init__.py": "",
            "scanpkg/jobs.py": greeting(),
            "scanpkg/deep/more.py": greeting(),
            "scanlone.py": greeting(),
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir("/")
    ids = [operation.id for operation in scan_operations("scanpkg").operations]
    assert ids == ["scanpkg.deep.more.greet", "scanpkg.jobs.greet"]
    assert [operation.id for operation in scan_operations("scanpkg.jobs").operations] == ["scanpkg.jobs.greet"]
    assert [operation.id for operation in scan_operations("scanpkg.deep").operations] == ["scanpkg.deep.more.greet"]
    assert [operation.id for operation in scan_operations("scanlone").operations] == ["scanlone.greet"]
    import scanpkg.jobs  # type: ignore[import-not-found]

    assert scan_operations("scanpkg").operations[1] is scanpkg.jobs.greet


def test_one_file_is_scanned_alone(tmp_path: Path) -> None:
    write(tmp_path, {"one.py": greeting(), "two.py": "raise RuntimeError"})
    manifest = scan_operations(str(tmp_path / "one.py"))
    assert [operation.id for operation in manifest.operations] == ["one.greet"]
    assert manifest.skipped == []


def test_specs_without_handlers_are_kept_apart(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "specs.py": """
                from operations import Operation, OperationSpec
                LONELY = OperationSpec(name="lonely", namespace="s", type="query", input_schema={"type": "object"})
                SPEC = OperationSpec(name="run", namespace="s", type="query")
                RUN = Operation(spec=SPEC, handler=lambda input, context: None)
                """
        },
    )
    manifest = scan_operations(tmp_path)
    assert [operation.id for operation in manifest.operations] == ["s.run"]
    assert [spec.id for spec in manifest.specs] == ["s.lonely"]
    assert manifest.skipped == []


def test_imported_operations_belong_to_a_module_only_through_all(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a_user.py": "from .shop import greet",
            "shop.py": greeting(),
            "outer.py": "from tests.sources.scanner.elsewhere import ping\n__all__ = ['ping']",
            "silent.py": "from tests.sources.scanner.elsewhere import pong",
            "wrap.py": """
                from operations import operation
                from tests.sources.scanner.elsewhere import plain
                wrapped = operation(plain, )
                """,
        },
    )
    manifest = scan_operations(tmp_path)
    assert manifest.skipped == []
    assert manifest.origins["shop.greet"].endswith("/shop.py")
    assert sorted(manifest.origins) == [
        "shop.greet",
        "tests.sources.scanner.elsewhere.ping",
        "tests.sources.scanner.elsewhere.plain",
    ]


def test_an_id_defined_twice_is_reported(tmp_path: Path) -> None:
    twice = "from operations import operation\n@operation('x.y')\ndef f() -> None: ...\n"
    write(tmp_path, {"a.py": twice, "b.py": twice})
    manifest = scan_operations(tmp_path)
    assert len(manifest.operations) == 1
    assert [(Path(skip.path).name, skip.reason) for skip in manifest.skipped] == [
        ("b.py", f"duplicate id x.y: already defined in {tmp_path / 'a.py'}")
    ]


def test_directories_without_project_modules_are_skipped(tmp_path: Path) -> None:
    bad = "raise RuntimeError"
    write(
        tmp_path,
        {
            ".hidden/a.py": bad,
            "__pycache__/a.py": bad,
            "node_modules/a.py": bad,
            "env/pyvenv.cfg": "",
            "env/lib/a.py": bad,
            "notes.txt": "",
            "ok.py": greeting(),
        },
    )
    (tmp_path / "loop").symlink_to(tmp_path)
    manifest = scan_operations(tmp_path)
    assert [operation.id for operation in manifest.operations] == ["ok.greet"]
    assert manifest.skipped == []


def test_names_that_are_not_identifiers(tmp_path: Path) -> None:
    write(tmp_path, {"my-tools/2 fast.py": greeting(), "a.b.py": greeting(), "__main__.py": "raise SystemExit"})
    manifest = scan_operations(tmp_path)
    assert [operation.id for operation in manifest.operations] == ["my-tools.2_fast.greet"]
    assert {Path(skip.path).name: skip.reason.partition(",")[0] for skip in manifest.skipped} == {
        "__main__.py": "a program (__main__)",
        "a.b.py": "cannot be imported: its path has a name with a dot",
    }


def test_modules_come_from_the_file_system_that_is_given() -> None:
    fs = MemoryFS({"virtual/app/__init__.py": "", "virtual/app/x.py": "from .y import greet", "virtual/app/y.py": ""})
    fs.files["virtual/app/y.py"] = greeting()
    fs.files["virtual/app/bad.py"] = "1/0"
    manifest = scan_operations("virtual", fs)
    assert [operation.id for operation in manifest.operations] == ["app.y.greet"]
    assert [(skip.path, skip.reason) for skip in manifest.skipped] == [
        ("virtual/app/bad.py", "ZeroDivisionError: division by zero (line 1)")
    ]


@pytest.mark.parametrize("path", ["no/such/folder", "nosuchpackage_x", "missing.py", "json.decoder.nothing"])
def test_a_missing_directory_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(CallError, match=path.replace(".", r"\.")) as caught:
        scan_operations(path)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_a_file_that_is_not_a_module(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(CallError, match=r"expected a name that ends in \.py"):
        scan_operations(tmp_path / "x.txt")
