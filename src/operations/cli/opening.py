"""Opening sources with somebody watching: a status line while it lasts, and consent asked for where there is a user."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager

from operations.cli.status import StatusLine
from operations.cli.telling import is_json, tell, tell_json
from operations.cli.terminal import is_terminal, printable
from operations.config import Config, SourceReport, Workspace, open_workspace


def open_sources(
    config: Config, only: Collection[str] | None = None, line: StatusLine | None = None
) -> AbstractAsyncContextManager[Workspace]:
    """The workspace of a configuration, to be entered; `line` tells which sources are still awaited."""
    waiting = [name for name, source in config.sources.items() if not source.settings.disabled]
    waiting = [name for name in waiting if only is None or name in only]

    def show_waiting() -> None:
        if line is not None:
            line.text = f"opening {', '.join(waiting)}"

    def note(report: SourceReport) -> None:
        if report.name in waiting:
            waiting.remove(report.name)
        show_waiting()

    def show_consent(source: str, url: str) -> None:
        if line is not None:
            line.clear()
        asked = f"the source {source} asks for your consent; open this address in a browser:"
        if is_json():
            tell_json("info", asked, {"source": source, "url": url})
        else:
            tell(f"{printable(asked)}\n  {printable(url)}")

    show_waiting()
    is_watched = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    return open_workspace(config, only=only, on_progress=note, show_consent=show_consent if is_watched else None)
