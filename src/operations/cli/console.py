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
        """Return the name of the source of an operation."""
        return self._workspace.source_of(operation_id)


def describe_console(served: ServedApp) -> str:
    """Return the part of a start message that names the path of the console, or the command that builds it.

    Return an empty string if no console is served.
    """
    if served.console is None:
        return ""
    if served.console.is_built:
        return "; console at /console/"
    return f"; the console is not built ('{BUILD_COMMAND}' in a checkout with Node builds it)"
