"""Modules that misbehave while they are imported: each is reported, and the others are found."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.sources.scanner import scan_operations
from tests.sources.scanner.projects import MemoryFS, greeting, write

BROKEN = {
    "raises": ("x = 1\nraise ValueError('no\\nway')", "ValueError: no way (line 2)"),
    "exits": ("import sys; sys.exit(3)", "sys.exit(3) during import"),
    "quits": ("quit()", "sys.exit(None) during import"),
    "syntax": ("def broken(:\n", "syntax error in line 1: invalid syntax"),
    "zero_bytes": ("x = '\0'", "null bytes"),
    "encoding": ("# -*- coding: nonsense -*-", "unknown encoding"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "asks": ("name = input('your name? ')", "reads stdin during import"),
    "missing": ("import nosuchthing_at_all", "cannot find module 'nosuchthing_at_all' (line 1)"),
    "sibling": ("from .nothere import x", "cannot find module 'nothere' (line 1)"),
    "beside": ("import a_good", "cannot find module 'a_good' (line 1); write `from . import"),
    "recursion": ("def f(): f()\nf()", "RecursionError"),
    "scans": (
        "from operations.sources.scanner import scan_operations\nscan_operations(__file__)",
        "cannot scan during a scan",
    ),
    "generator_exit": ("raise GeneratorExit", "GeneratorExit"),
    "circle_a": ("from .circle_b import b\na = 1", "circular import"),
    "arguments": ("import argparse; argparse.ArgumentParser().parse_args(['--x'])", "sys.exit(2) during import"),
    "bad_operation": (
        "from operations import operation\n@operation\ndef f(*args): ...",
        "TypeError: f: unsupported parameter *args",
    ),
    "mute_error": (
        "class E(Exception):\n def __str__(self): raise ValueError\nraise E",
        "E: (its message cannot be read)",
    ),
    "bad_all": (
        "class A:\n def __contains__(self, name): raise OSError('no')\n__all__ = A()\n" + greeting(),
        "OSError: no",
    ),
    "bad_error": ("class E(Exception):\n def __str__(self): return 'x' * 10_000\nraise E", "E: xxx"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_module_is_reported_and_stops_nothing(tmp_path: Path, name: str) -> None:
    text, reason = BROKEN[name]
    write(tmp_path, {"a_good.py": greeting(), "z_good.py": greeting(), "circle_b.py": ""})
    (tmp_path / f"{name}.py").write_text(text)
    if name == "circle_a":
        (tmp_path / "circle_b.py").write_text("from .circle_a import a\nb = 1")
    manifest = scan_operations(tmp_path)
    assert [operation.id for operation in manifest.operations] == ["a_good.greet", "z_good.greet"]
    reasons = {Path(skip.path).name: skip.reason for skip in manifest.skipped}
    assert reason in reasons[f"{name}.py"]
    assert all("\n" not in text and len(text) < 320 and "scanned_" not in text for text in reasons.values())


@pytest.mark.parametrize(
    "odd",
    [
        "def __getattr__(name):\n    raise RuntimeError(name)",
        "class Lazy:\n    def __getattribute__(self, name):\n        raise RuntimeError(name)\nlazy = Lazy()",
        "class Lazy:\n    __class__ = property(lambda self: 1 / 0)\nlazy = Lazy()",
        "class Lazy:\n    def __eq__(self, other): 1 / 0\n    def __hash__(self): 1 / 0\nlazy = Lazy()",
    ],
)
def test_names_that_cannot_be_inspected_hide_no_operation(tmp_path: Path, odd: str) -> None:
    write(tmp_path, {"a_good.py": greeting(), "z_good.py": greeting()})
    (tmp_path / "odd.py").write_text(f"{odd}\n{greeting()}")
    manifest = scan_operations(tmp_path)
    assert [operation.id for operation in manifest.operations] == ["a_good.greet", "odd.greet", "z_good.greet"]
    assert manifest.skipped == []


def test_a_pipe_with_the_name_of_a_module_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path, {"good.py": greeting()})
    os.mkfifo(tmp_path / "pipe.py")
    manifest = scan_operations(tmp_path)
    assert [(Path(skip.path).name, skip.reason) for skip in manifest.skipped] == [
        ("pipe.py", "OSError: not a regular file")
    ]
    assert [operation.id for operation in manifest.operations] == ["good.greet"]


def test_a_module_that_changes_the_directory_affects_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"code/moves.py": "import os\nos.chdir('/')\n" + greeting()})
    monkeypatch.chdir(tmp_path)
    assert [operation.id for operation in scan_operations("code").operations] == ["moves.greet"]
    assert Path.cwd() == tmp_path


def test_a_module_whose_import_never_ends_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import threading; threading.Event().wait()", "b.py": greeting()})
    manifest = scan_operations(tmp_path, timeout=0.2)
    assert [operation.id for operation in manifest.operations] == ["b.greet"]
    assert manifest.skipped[0].reason.startswith("import did not finish within 0.2 seconds")


def test_the_output_of_a_module_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"noisy.py": "import sys\nprint('noise')\nsys.stdout.write('more')\nKEPT = sys.stdout\n"})
    before = sys.stdout, sys.stdin
    scan_operations(tmp_path)
    assert (sys.stdout, sys.stdin) == before
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "noise" in captured.err
    kept = next(module for name, module in sys.modules.items() if name.endswith(".noisy")).KEPT
    kept.write("later")
    kept.flush()
    assert capfd.readouterr().out == "later"


def test_input_of_the_program_is_not_read_by_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("for the program\n"))
    write(
        tmp_path, {"reads.py": "import sys\nTEXT = sys.stdin.read()\nassert TEXT == ''\nassert list(sys.stdin) == []"}
    )
    assert scan_operations(tmp_path).skipped == []
    assert sys.stdin.readline() == "for the program\n"


def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    class Refusing:
        def list(self, path: str) -> list[object]:
            raise PermissionError(13, "Permission denied")

        def read(self, path: str) -> bytes:
            raise AssertionError

    manifest = scan_operations("closed", Refusing())  # type: ignore[arg-type]
    assert [skip.reason for skip in manifest.skipped] == ["cannot list the directory: Permission denied"]


def test_a_program_does_not_wait_at_its_end_for_a_module_that_never_ends(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import threading; threading.Event().wait()"})
    program = f"""
import asyncio
from operations.sources.scanner import scan_operations
from operations.sources.scanner.isolation import in_background

async def main():
    try:
        async with asyncio.timeout(0.2):
            await in_background(scan_operations, {str(tmp_path)!r})
    except TimeoutError:
        print("gave up")

asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert run.stdout == "gave up\n"


@given(st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), min_size=1, max_size=4))
def test_files_with_any_content_stop_no_scan(contents: list[bytes]) -> None:
    fs = MemoryFS({"virtual/good.py": greeting()})
    for number, content in enumerate(contents):
        fs.raw[f"virtual/m{number}.py"] = content
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        manifest = scan_operations("virtual", fs)
    assert "good.greet" in manifest.origins
