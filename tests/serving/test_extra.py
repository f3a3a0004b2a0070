"""Imports of serving: nothing optional before it is needed, and the error for a missing extra names it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_an_application_needs_no_server() -> None:
    code = "import sys; import operations.serving; print({'uvicorn', 'mcp', 'jwt', 'httptools'} & sys.modules.keys())"
    assert run(code).stdout == "set()\n"


@pytest.mark.parametrize("module", ["uvicorn", "httptools"])
def test_a_missing_server_names_its_extra(module: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; from operations.serving import serve_http"
    assert f"{module} is not installed: pip install 'operations[serve]'" in run(code).stderr
