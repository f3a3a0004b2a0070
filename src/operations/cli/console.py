"""Parts of the console for `ops serve` and `ops hub`: the shown sources, and a message with the path of the console."""

from __future__ import annotations

from collections.abc import Iterable

from operations.config import Workspace
from operations.serving import ServedApp
from operations.serving.console import SourceState
from operations.serving.console.pages import BUILD_COMMAND


class WorkspaceSources:
    """The sources of a configuration, failed ones included."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def states(self) -> Iterable[SourceState]:
        """Return the state of every source."""
        return [
            SourceState(report.name, report.kind, report.state, report.problem) for report in self._workspace.reports
        ]

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of the source of an operation; None if the id is unknown."""
        return self._workspace.source_of(operation_id)


def describe_console(served: ServedApp) -> str:
    """Return the part of a start message that names the path of the console.

    If the console is not built, return the command that builds it; if no console is served, an empty string.
    """
    if served.console is None:
        return ""
    if served.console.is_built:
        return "; console at /console/"
    return f"; the console is not built ('{BUILD_COMMAND}' in a checkout with Node builds it)"
