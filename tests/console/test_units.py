"""The console's own checks: types, style and unit tests, as `npm run check` and `npm test` run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CONSOLE = Path(__file__).parent.parent.parent / "console"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("command", [("run", "check"), ("test",)], ids=["types and style", "units"])
def test_the_page_passes_its_own_checks(command: tuple[str, ...]) -> None:
    npm = shutil.which("npm")
    if npm is None or not (CONSOLE / "node_modules" / "vitest").exists():
        pytest.skip("the console's tools are not installed: `make console` does it, or `npm ci` in console")
    done = subprocess.run([npm, *command], cwd=CONSOLE, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
