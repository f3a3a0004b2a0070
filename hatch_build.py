"""Build hook of hatchling: builds the console with npm, and adds its files to the wheel and the source archive."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "console"
ASSETS = "src/operations/serving/console/assets"
_NOT_SOURCES = {"node_modules", "coverage", "test-results"}


class ConsoleBuildHook(BuildHookInterface[Any]):
    """Runs npm in `console/`, unless the built files are newer than their sources.

    A source archive has the built files and no sources: nothing is run there. Without Node the wheel has no console. An
    editable installation is left alone: `make console` builds the files that it uses.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the console before files are collected."""
        if version == "editable":
            return
        sources, assets = Path(self.root) / SOURCES, Path(self.root) / ASSETS
        if not (sources / "package.json").is_file() or is_current(sources, assets):
            return
        npm = shutil.which("npm")
        if npm is None:
            if not (assets / "index.html").is_file():
                self.app.display_warning("npm is not installed: the wheel has no console (Node 20 or later builds it)")
            return
        # A package index without the builds for other systems cannot satisfy `npm ci`.
        if run(npm, sources, "ci") is not None and (problem := run(npm, sources, "install", "--no-save")) is not None:
            raise RuntimeError(problem)
        if (problem := run(npm, sources, "run", "build")) is not None:
            raise RuntimeError(problem)


def run(npm: str, folder: Path, *words: str) -> str | None:
    """Run npm in a folder; return what went wrong, or None."""
    done = subprocess.run([npm, *words], cwd=folder, capture_output=True, text=True, check=False)
    if not done.returncode:
        return None
    return f"npm {' '.join(words)} failed in {SOURCES}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def is_current(sources: Path, assets: Path) -> bool:
    """Return whether the built page is newer than everything that it is built of."""
    page = assets / "index.html"
    if not page.is_file():
        return False
    built = page.stat().st_mtime
    inputs = (path for path in sources.rglob("*") if not _NOT_SOURCES & set(path.relative_to(sources).parts))
    return all(path.stat().st_mtime <= built for path in inputs if path.is_file())
