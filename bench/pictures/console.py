"""Screenshots of the console: `python -m bench.pictures.console --document github-api.json`.

It serves the demo, opens its screens in a browser, and writes docs/pictures/console-*.png. `--all FOLDER` writes every
screen to another directory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.pictures.drawing import FOLDER

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "console.mjs"


def main() -> None:
    """Take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--document", type=Path, required=True, help="GitHub's OpenAPI document")
    parser.add_argument("--all", type=Path, help="write every screen (light, dark, phone) to this directory")
    options = parser.parse_args()
    node = shutil.which("node")
    if node is None:
        sys.exit("the browser requires Node: install Node 20")
    command = [sys.executable, "-m", "examples.console", "--address", "127.0.0.1:0", "--document", options.document]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            folder = options.all or FOLDER
            folder.mkdir(exist_ok=True)
            subprocess.run([node, SCRIPT, url, str(folder), "all" if options.all else "docs"], check=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
