"""Packages from npm that benchmarks measure or read, installed when they are first needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

MODULES = Path(__file__).parent / "node_modules"


def npm_package(name: str, version: str) -> Path | None:
    """The folder of a package, installed if need be; None, with a word about it, where it cannot be."""
    folder = MODULES / name
    if folder.exists():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        print(f"npm is not installed: what needs {name} is left out")
        return None
    command = [npm, "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(
        [*command, "--prefix", str(MODULES.parent), f"{name}@{version}"], capture_output=True, text=True, check=False
    )
    (MODULES / ".package-lock.json").unlink(missing_ok=True)  # it would name where packages came from
    if done.returncode or not folder.exists():
        print(f"npm could not install {name}: what needs it is left out")
        return None
    return folder
