"""CodeLimits: the limits of one script of code mode. The module does not import the sandbox."""

from __future__ import annotations

import msgspec

from operations.pubsub.limits import check_counts, check_seconds

RUN = "run_python"
"""Name of the tool that runs a script."""


class CodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one script."""

    seconds: float = 120.0
    """Time from the call of the tool to its result; includes the wait for a sandbox, nested calls and approvals."""
    cpu_seconds: float = 5.0
    """Maximum CPU time of the script."""
    memory_bytes: int = 64 * 1024 * 1024
    calls: int = 100
    """Maximum number of calls of operations."""
    refusals: int = 3
    """Number of calls without approval after which the script stops, so that a person is not asked again and again."""
    output_bytes: int = 200_000
    """Maximum size of the printed output; a script that prints more fails."""
    code_characters: int = 50_000

    def __post_init__(self) -> None:
        check_seconds(seconds=self.seconds, cpu_seconds=self.cpu_seconds)
        check_counts(
            memory_bytes=self.memory_bytes,
            refusals=self.refusals,
            output_bytes=self.output_bytes,
            code_characters=self.code_characters,
        )
        check_counts(calls=self.calls, least=0)
