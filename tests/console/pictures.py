"""Pictures of the console from a real run: `python -m tests.console.pictures [DIRECTORY]`.

Without a directory it replaces the pictures of the documentation; with one it writes every screen: light, dark and on a
phone. Needs `make console`, the packages of tests/node and OPERATIONS_TEST_DOCUMENTS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.console.test_console import ROOT, serving

_DOCUMENTED = {"operation-light": "console-operation", "error": "console-error", "waterfall": "console-trace"}
"""The screens in the documentation, and the names of their files."""
_SIZE = "1200x700x1"
"""Width, height and pixels per point of those pictures."""


def main() -> None:
    """Start the demo of the console and take the pictures."""
    with serving() as server, tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        directory.mkdir(parents=True, exist_ok=True)
        screens = [] if len(sys.argv) > 1 else list(_DOCUMENTED)
        script = str(ROOT / "tests" / "console" / "pictures.mjs")
        environment = {**os.environ, **({"CONSOLE_PICTURES": _SIZE} if screens else {})}
        subprocess.run(["node", script, server.url, str(directory), *screens], check=True, env=environment)
        for screen in screens:
            shutil.copy(directory / f"{screen}.png", ROOT / "docs" / "pictures" / f"{_DOCUMENTED[screen]}.png")


if __name__ == "__main__":
    main()
