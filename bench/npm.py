"""npm packages for benchmarks, installed on first use."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

MODULES = Path(__file__).parent / "node_modules"


def npm_package(name: str, version: str) -> Path | None:
    """Return the directory of a package, installing it if missing; print a message and return None on failure."""
    folder = MODULES / name
    if folder.exists():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        print(f"npm is not installed: skipping benchmarks that require {name}")
        return None
    command = [npm, "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(
        [*command, "--prefix", str(MODULES.parent), f"{name}@{version}"], capture_output=True, text=True, check=False
    )
    (MODULES / ".package-lock.json").unlink(missing_ok=True)  # a lock file would name the package registry
    if done.returncode or not folder.exists():
        print(f"npm could not install {name}: skipping benchmarks that require it")
        return None
    return folder
