"""SandboxScript: one run of a model's code in the sandbox, in a worker thread; its calls run on the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from operations.env import merge_input
from operations.errors import CallError, ErrorCode
from operations.exports.code_limits import CodeLimits
from operations.exports.sandbox_modules import SandboxModule, import_lines, operations_by_path
from operations.exports.search_tools import SearchTools
from operations.exports.tools import ModelTool
from operations.interceptors.approval import NOT_APPROVED

try:
    import pydantic_monty
except ImportError:
    message = "pydantic-monty is not installed: pip install 'operations[code]'"
    raise ImportError(message, name="pydantic_monty") from None

monty = pydantic_monty
"""The sandbox; the only import of the optional library."""
_log = logging.getLogger("operations")
_STUBS = """async def search_operations(query: str, limit: int = 8) -> str: ...
async def describe_operations(ids: list[str]) -> str: ...
"""
_HELPERS = ("search_operations", "describe_operations")
_MAX_NAMED = 200
"""Maximum number of operations that a script may name, because making the stub of each takes milliseconds."""
_MAX_DEPTH = 100
_MAX_NODES = 200_000
_MAX_CHARACTERS = 16 * 1024 * 1024
_NODE_BYTES = 64
"""Approximate memory of a value in bytes, without the characters of its strings."""
_WORD_BITS = 64
_MAX_INTEGER_BITS = 2_048
"""Size of the largest integer that may enter or leave the sandbox: writing its digits takes quadratic time."""
_CHARACTERS_PER_BIT = 5
"""Number of characters that take as long to write as one bit of an integer of the largest size."""
_MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Largest total size of the inputs of a script's waiting and running calls. They are stored outside the sandbox."""
_TOO_LARGE = "is too large or nested too deep"
_SUSPENSIONS = 1_000
"""How often imports and name lookups may suspend the sandbox.

The limit is three higher for each call that a script may make.
"""


class ScriptCalls(Protocol):
    """Runs the calls of a script."""

    async def call(self, tool: ModelTool, input: Any) -> Any:
        """Call an operation and return its data; raise a CallError if the call fails."""

    def asks(self, tool: ModelTool) -> bool:
        """Whether a call may need the consent of a person."""


class ScriptStoppedError(Exception):
    """The script was stopped from outside."""


class SandboxScript:
    """A script and its pending calls. `run` is called in a thread; `stop` ends the script from the event loop."""

    def __init__(
        self, code: str, modules: SandboxModule, search: SearchTools, calls: ScriptCalls, limits: CodeLimits
    ) -> None:
        self._code = code
        self._modules = modules.used_in(code)
        self._search = search
        self._host = calls
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._operations = operations_by_path(self._modules)
        if len(self._operations) > _MAX_NAMED:
            problem = f"the code names {len(self._operations)} operations: at most {_MAX_NAMED} are allowed"
            raise CallError(ErrorCode.VALIDATION_ERROR, problem, {"executed": "no"})
        self._asking = asyncio.Lock()
        self._refusals = 0
        self._waiting: dict[int, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        self._running: dict[int, concurrent.futures.Future[Any]] = {}
        self._sizes: dict[int, int] = {}
        """The sizes of the inputs of waiting and running calls."""
        self._calls = 0
        self._is_stopped = False
        self._output = monty.CollectString(limits.output_bytes)

    @property
    def printed(self) -> str:
        """The output so far."""
        return self._output.output

    def stop(self) -> None:
        """Cancel pending calls; the thread ends at the script's next step, at the latest at its CPU limit."""
        self._is_stopped = True  # a call that the thread requested meanwhile is not started
        for call in list(self._running.values()):
            call.cancel()

    def run(self, pool: monty.Monty) -> Any:
        """Run the script and return the value of its last expression."""
        self._check()
        limits = self._limits
        try:
            with pool.checkout(
                limits={
                    "max_feed_duration_secs": limits.cpu_seconds,
                    "max_memory": limits.memory_bytes,
                    "max_suspensions": _SUSPENSIONS + 3 * limits.calls,
                },
                type_check=True,
                type_check_format="concise",
                type_check_stubs=_STUBS,
                os_policy={"sleep": "zero"},
                external_modules={self._modules.path: _external(self._modules)},
            ) as session:
                session.feed_run(import_lines(self._modules), print_callback=self._output)
                lookup = dict.fromkeys(_HELPERS, _never)
                step = session.feed_start(self._code, print_callback=self._output, external_lookup=lookup)
                while not isinstance(step, monty.MontyComplete):
                    self._check()
                    step = self._next(step)
                if problem := problem_of(step.output):
                    raise CallError(ErrorCode.EXECUTION_ERROR, f"the result {problem}: return or print a part of it")
                return step.output
        finally:
            for call in self._running.values():
                call.cancel()

    def _check(self) -> None:
        """Raise an error if the script was stopped, or if too many of its calls were not approved."""
        if self._is_stopped:
            raise ScriptStoppedError
        if self._refusals >= self._limits.refusals:
            problem = f"the script was ended after {self._refusals} refused calls; do not repeat them"
            raise CallError(ErrorCode.ACCESS_DENIED, problem, {"reason": NOT_APPROVED})

    def _next(self, step: Any) -> Any:
        if isinstance(step, monty.FutureSnapshot):
            return step.resume(self._settle(step.pending_call_ids))
        if not isinstance(step, monty.FunctionSnapshot) or step.is_os_function:
            return step.resume_auto()
        if problem := self._count_input(step.call_id, (step.args, step.kwargs)):
            text = f"{ErrorCode.VALIDATION_ERROR}: {step.function_name}: the input {problem}"
            return step.resume({"exc_type": "RuntimeError", "message": text})
        # A call starts when the script awaits it, like a coroutine in Python.
        self._waiting[step.call_id] = str(step.function_name), step.args, step.kwargs
        return step.resume({"future": ...})

    def _count_input(self, call_id: int, input: Any) -> str | None:
        """Count the size of a call's input; return why the call is refused, or None."""
        size = size_of(input)
        if size is None:
            return _TOO_LARGE
        if size + sum(self._sizes.values()) > _MAX_PENDING_BYTES:
            return "is too large together with those of pending calls: await them first"
        self._sizes[call_id] = size
        return None

    def _settle(self, call_ids: list[int]) -> dict[int, Any]:
        """Start the calls that the script awaits; return the outcomes of those that end first."""
        for call_id in call_ids:
            if call_id in self._waiting:
                path, args, kwargs = self._waiting.pop(call_id)
                call = self._call(path, args, kwargs)
                self._running[call_id] = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._check()
        awaited = {self._running[call_id]: call_id for call_id in call_ids}
        done, _ = concurrent.futures.wait(awaited, return_when=concurrent.futures.FIRST_COMPLETED)
        self._check()
        ended = [awaited[call] for call in done]
        for call_id in ended:
            del self._sizes[call_id]
        return {call_id: self._outcome(self._running.pop(call_id)) for call_id in ended}

    def _outcome(self, call: concurrent.futures.Future[Any]) -> Mapping[str, Any]:
        try:
            value = call.result()
            problem = problem_of(value)
            if problem is None:
                return {"return_value": value}
            text = f"{ErrorCode.EXECUTION_ERROR}: the result {problem}; the operation has run"
        except CallError as error:
            text = self._search.tools.rendering.failure(error).text
        except (Exception, concurrent.futures.CancelledError):  # noqa: BLE001  # the exception's text is not sent
            _log.exception("a call of a script failed")
            text = f"{ErrorCode.EXECUTION_ERROR}: internal error"
        return {"exc_type": "RuntimeError", "message": text}

    async def _call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_stopped:
            raise ScriptStoppedError
        self._calls += 1
        if self._calls > self._limits.calls:
            raise CallError(ErrorCode.UNAVAILABLE, f"a script may make at most {self._limits.calls} calls")
        if path in _HELPERS:
            return await self._help(path, args, kwargs)
        if len(args) > 1 or path not in self._operations:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{path}: expected an operation with keyword arguments")
        input = merge_input(path, args[0] if args else None, kwargs)
        tool = self._search.tools.find(self._operations[path].id)
        if not self._host.asks(tool):
            return await self._approved_call(tool, input)
        async with self._asking:  # one question at a time
            return await self._approved_call(tool, input)

    async def _approved_call(self, tool: ModelTool, input: Any) -> Any:
        """Call an operation, and count the call if its approval is refused.

        After `limits.refusals` refusals, raise an error instead: no call runs and no person is asked.
        """
        self._check()
        try:
            return await self._host.call(tool, input)
        except CallError as error:
            if isinstance(error.details, Mapping) and error.details.get("reason") == NOT_APPROVED:
                self._refusals += 1
            raise

    async def _help(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Search or describe operations, in a thread, because the first search builds an index."""
        method = self._search.search if name == "search_operations" else self._search.describe
        try:
            return await asyncio.to_thread(method, *args, **kwargs)
        except (TypeError, ValueError, AttributeError):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid arguments of {name}") from None


def _external(module: SandboxModule) -> monty.ExternalModule:
    attributes: dict[str, Any] = {name: _external(child) for name, child in module.children.items()}
    attributes |= dict.fromkeys(module.functions, _never)
    return monty.ExternalModule(attributes, stubs=module.stub())


def problem_of(value: Any) -> str | None:
    """Return why a value may not enter or leave the sandbox; None if it may."""
    return _TOO_LARGE if size_of(value) is None else None


def size_of(value: Any) -> int | None:
    """Return about how many bytes a value takes; None if it is too large or nested too deep.

    A small value in memory can be huge as JSON: each `x = [x] * 10` makes the JSON text ten times as long.
    """
    pending: list[tuple[Any, int]] = [(value, 0)]
    nodes, characters = 0, 0
    while pending:
        each, depth = pending.pop()
        nodes += 1
        inner: Collection[Any] = ()
        if isinstance(each, dict):
            inner = (*each.keys(), *each.values()) if len(each) <= _MAX_NODES else each
        elif isinstance(each, (list, tuple, set, frozenset)):
            inner = each
        elif isinstance(each, (str, bytes)):
            characters += len(each)
        elif isinstance(each, int) and (bits := each.bit_length()) > _WORD_BITS:
            if bits > _MAX_INTEGER_BITS:
                return None
            characters += _CHARACTERS_PER_BIT * bits
        if depth > _MAX_DEPTH or nodes + len(pending) + len(inner) > _MAX_NODES or characters > _MAX_CHARACTERS:
            return None
        pending.extend((item, depth + 1) for item in inner)
    return characters + _NODE_BYTES * nodes


def _never(*args: Any, **kwargs: Any) -> Any:
    """Placeholder for a function of the sandbox: it never runs, because `SandboxScript` handles the calls."""
    raise NotImplementedError
