"""CodeTool: one tool that runs a model's Python code in a sandbox, where `env` has the operations of a tool set.

The sandbox is pydantic-monty: an interpreter without access to files, network and processes, in a separate process.
The type checker of the sandbox checks a script against the operations' schemas before anything runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.exports.arguments import parse_arguments
from operations.exports.code_limits import RUN, CodeLimits
from operations.exports.results import ToolResult, as_text, readable
from operations.exports.sandbox_modules import SandboxModule, sandbox_modules
from operations.exports.sandbox_pool import SandboxPool
from operations.exports.sandbox_script import SandboxScript, ScriptCalls, ScriptStoppedError, monty
from operations.exports.search_tools import FixedTools, SearchTools, compact_listing, text_result, tool_definition
from operations.exports.tools import ModelTool, ToolSet
from operations.interceptors.approval import needs_consent
from operations.settings import read_settings

_log = logging.getLogger("operations")
_MAX_STUBBED = 40
_MAX_STUB_CHARACTERS = 8_000
_DESCRIPTION = """Run Python code that calls operations: `await env.<namespace>.<name>(property=value)` returns the \
operation's data. Return a value as the last expression, or print it. The code is type-checked before it runs. Only a \
part of the standard library is available (json, re, math, datetime, asyncio.gather); there are no files, network and \
processes. A failed call raises RuntimeError. await search_operations(query) and await describe_operations([id, …]) \
return text."""


class CodeTool(FixedTools):
    """The tool `run_python`: `async with CodeTool(registry.tools(…)) as tool: await tool.run(code)`.

    A script can call only the operations of the tool set. Each call has the identity, approval and rendering of the
    tool set. At most `processes` scripts run at the same time; others wait. If a script crashes its sandbox or exceeds
    `limits`, only this script fails, and its sandbox is replaced.
    """

    def __init__(
        self,
        tools: ToolSet,
        *,
        limits: CodeLimits | Mapping[str, Any] | None = None,
        processes: int = 4,
        sandboxes: SandboxPool | None = None,
    ) -> None:
        self.tools = tools
        self.limits = read_settings({} if limits is None else limits, CodeLimits, "limits")
        self._search = SearchTools(tools)
        self._sandboxes = sandboxes or SandboxPool(processes)
        self._owns_sandboxes = sandboxes is None
        self._generation = -1
        self._modules = SandboxModule("")
        self._overview = ""

    async def __aenter__(self) -> CodeTool:
        await self._sandboxes.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop running scripts and end the sandbox processes, except those of a given pool (`sandboxes`)."""
        if self._owns_sandboxes:
            await self._sandboxes.close()

    async def run(
        self, code: str, *, timeout: float | None = None, calls: ScriptCalls | None = None, owner: str = ""
    ) -> ToolResult:
        """Run a script; the text of the result is the printed output and the value of the last expression.

        A failure is returned as a result; only a cancellation of the current task is raised. `timeout` is in seconds,
        at most `limits.seconds`. `calls` runs the calls of the script; by default, the tool set does. The sandbox
        pool limits the number of concurrent scripts of each `owner`.
        """
        try:
            return await self._run(code, timeout, calls or _ToolSetCalls(self.tools), owner)
        except CallError as error:
            return self.tools.rendering.failure(error)
        except Exception:  # noqa: BLE001  # a model always gets a result
            _log.exception("a model's script failed")
            return self.tools.rendering.failure(CallError(ErrorCode.EXECUTION_ERROR, "internal error"))

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str | bytes | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """Call the tool with a model's arguments; never raises."""
        try:
            code = parse_arguments(arguments).get("code")
            if name != RUN:
                raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"no tool {name[:100]!r}: expected {RUN}")
            if not isinstance(code, str):
                raise CallError(ErrorCode.VALIDATION_ERROR, "invalid argument code: expected a string")
        except CallError as error:
            return self.tools.rendering.failure(error)
        return await self.run(code, timeout=timeout)

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tool in Anthropic's format.

        Its description has a stub of each operation; for a large tool set, it has only a compact list of operations.
        """
        self.prepare()
        properties = {"code": {"type": "string", "description": "Python code"}}
        return [tool_definition(RUN, f"{_DESCRIPTION}\n\n{self._overview}", properties, ["code"])]

    async def _run(self, code: str, timeout: float | None, calls: ScriptCalls, owner: str) -> ToolResult:
        if len(code) > self.limits.code_characters:
            message = f"the code has {len(code):,} characters: at most {self.limits.code_characters:,} are allowed"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        self.prepare()
        seconds = self.limits.seconds if timeout is None else min(timeout, self.limits.seconds)
        script = SandboxScript(code, self._modules, self._search, calls, self.limits)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                value = await self._sandboxes.run(script, owner)
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._error(ErrorCode.TIMEOUT, f"the script took longer than {seconds:g} s", script.printed) from None
        except (monty.MontyError, ScriptStoppedError) as error:
            raise self._failure(error, script.printed) from None
        return await asyncio.to_thread(self._result, value, script.printed)  # large values take a while

    def _result(self, value: Any, printed: str) -> ToolResult:
        rendering = self.tools.rendering
        last = "" if value is None else as_text(readable(value))
        separator = "\n" if last and printed and not printed.endswith("\n") else ""
        return text_result(rendering.truncate(f"{printed}{separator}{last}"))

    def _failure(self, error: Exception, printed: str) -> CallError:
        if isinstance(error, (monty.MontySyntaxError, monty.MontyTypingError)):
            hints = self._modules.hints(text := error.display())
            message = f"the code did not run:\n{text.strip()}\n{hints}".strip()
            return CallError(ErrorCode.VALIDATION_ERROR, message, {"reason": "INVALID_CODE", "executed": "no"})
        if isinstance(error, monty.MontyRuntimeError):
            message = f"the script failed:\n{error.display()}"
        elif isinstance(error, ScriptStoppedError):
            message = "the script was stopped"
        else:
            message = "the script's sandbox crashed"
        return self._error(ErrorCode.EXECUTION_ERROR, message, printed)

    def _error(self, code: ErrorCode, message: str, printed: str) -> CallError:
        after = f"\noutput before the failure:\n{printed}" if printed else ""
        return CallError(code, self.tools.rendering.truncate(f"{message}{after}"))

    def prepare(self) -> None:
        """Read the tool set and write the description, if this is the first call or the registry has changed.

        For large schemas, this may take seconds.
        """
        generation = self.tools.registry.generation
        if self._generation == generation:
            return
        specs = [tool.spec for tool in self.tools.tools.values()]
        self._modules = sandbox_modules(specs)
        self._overview = ""
        if len(specs) <= _MAX_STUBBED:
            self._overview = "\n".join(f"# {module.path}\n{module.stub()}" for module in self._modules.walk())
        if not self._overview or len(self._overview) > _MAX_STUB_CHARACTERS:
            self._overview = compact_listing(spec.id for spec in specs)
        self._generation = generation


class _ToolSetCalls:
    """Calls the operations of a tool set, with its identity, approval and rendering."""

    def __init__(self, tools: ToolSet) -> None:
        self.call = tools.call_for_data
        self._tools = tools

    def asks(self, tool: ModelTool) -> bool:
        """Whether a call may need the consent of a person."""
        own = () if self._tools.approval is None else (self._tools.approval,)
        return needs_consent((*own, *self._tools.registry.interceptors), tool.spec)
