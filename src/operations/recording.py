"""Recordings: calls and results in a file, and operations that replay them.

A recording is JSON Lines: a line with the format version, one for each operation with its spec, and one for each call.
Secrets are replaced before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import aborted, timed_out, translate
from operations.interceptors import Invocation, Proceed
from operations.redaction import REDACTED, Redactor, environment_secrets, json_document
from operations.schema import UNKNOWN, jsonable
from operations.spec import Operation, OperationSpec
from operations.wire import decode_json, encode_json

_log = logging.getLogger("operations")
_VERSION = 1
_MAX_COMPARED = 200
_MAX_SHOWN = 400


class FileRecorder:
    """An interceptor that appends every call and its outcome to a file: `OperationRegistry(interceptors=[recorder])`.

    These values are replaced in the file: `secrets`, the values of environment variables such as `GITHUB_TOKEN`, fields
    with names such as `token`, fields that a schema marks as secret, and strings that look like credentials. If
    `redact` is passed, it is applied to every string afterwards.
    """

    def __init__(
        self, path: str | Path, *, secrets: Iterable[str] = (), redact: Callable[[str], str] | None = None
    ) -> None:
        self._redactor = Redactor([*secrets, *environment_secrets()], replace=redact)
        self._described: set[str] = set()
        path = Path(path)
        if path.exists() and path.stat().st_size:
            self._described.update(_read(path).specs)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "ab")
        if not self._described and self._file.tell() == 0:
            self._write({"recording": _VERSION})

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call and record its outcome."""
        try:
            result = await proceed(invocation)
        except (Exception, asyncio.CancelledError) as error:
            if not self._file.closed:
                self._record(invocation, error=_call_error(invocation, error))
            raise
        if invocation.streaming:
            return self._record_stream(invocation, result)
        self._record(invocation, result=result)
        return result

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FileRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _record_stream(self, invocation: Invocation, stream: Any) -> AsyncIterator[ResponseEnvelope[Any]]:
        events: list[ResponseEnvelope[Any]] = []
        failed: CallError | None = None
        try:
            async for envelope in stream:
                events.append(envelope)
                yield envelope
        except CallError as error:
            failed = error
            raise
        finally:
            self._record(invocation, events=events, error=failed)
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _record(
        self,
        invocation: Invocation,
        *,
        result: ResponseEnvelope[Any] | None = None,
        events: list[ResponseEnvelope[Any]] | None = None,
        error: CallError | None = None,
    ) -> None:
        spec = invocation.spec
        call: dict[str, Any] = {
            "operation": spec.id,
            "input": self._clean(spec.input_schema.redact(_plain(invocation.input))),
        }
        if result is not None:
            call["result"] = self._clean_envelope(spec, result)
        if events is not None:
            call["events"] = [self._clean_envelope(spec, each) for each in events]
        if error is not None:
            call["error"] = self._clean(_plain(error.to_dict()))
        try:
            if spec.id not in self._described:
                self._write({"spec": self._clean_spec(spec)})
                self._described.add(spec.id)
            self._write({"call": call})
        except CallError as problem:
            _log.warning("%s: the call is not recorded: %s", spec.id, problem.message)

    def _clean_envelope(self, spec: OperationSpec, envelope: ResponseEnvelope[Any]) -> Any:
        data = envelope.to_dict()
        data["data"] = spec.output_schema.redact(data.get("data"))
        meta = data.get("meta", {})
        if "setCookies" in meta:
            meta = {**meta, "setCookies": [REDACTED for _ in meta["setCookies"]]}
        # The result of an MCP tool is also in the meta: as structured content, and as JSON text.
        if "structuredContent" in meta:
            meta = {**meta, "structuredContent": spec.output_schema.redact(meta["structuredContent"])}
        if "content" in meta:
            meta = {**meta, "content": [self._clean_block(spec, each) for each in meta["content"]]}
        return self._clean({**data, "meta": meta})

    @staticmethod
    def _clean_block(spec: OperationSpec, block: Any) -> Any:
        """Return a content block without the values that the output schema marks as secret."""
        text = block.get("text") if isinstance(block, dict) else None
        document = json_document(text) if isinstance(text, str) else None
        cleaned = spec.output_schema.redact(document)
        return block if cleaned == document else {**block, "text": encode_json(cleaned).decode()}

    def _clean_spec(self, spec: OperationSpec) -> dict[str, Any]:
        """Return a spec for the file. It has no output schemas, because recorded results are already normalised."""
        data = msgspec.structs.replace(spec, output_schema=UNKNOWN, error_schemas={}).to_dict()
        # Name and namespace stay unchanged, because they identify the operation.
        return {**self._redactor.schema(data), "name": spec.name, "namespace": spec.namespace}

    def _clean(self, value: Any) -> Any:
        return self._redactor.data(value)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(encode_json(line) + b"\n")
        self._file.flush()


def _call_error(invocation: Invocation, error: BaseException) -> CallError:
    """Return the error of a call that an exception or a cancellation ended."""
    operation_id, deadline = invocation.spec.id, invocation.context.deadline
    translated = translate(error, operation_id)
    if isinstance(translated, CallError):
        return translated
    is_late = deadline is not None and deadline / 1000 <= time.time()
    return timed_out(operation_id, "unknown") if is_late else aborted(operation_id, "cancelled")


def replay_operations(path: str | Path) -> list[Operation[Any]]:
    """Return the recorded operations, with handlers that replay the file and need no source.

    A call gets the result of the recorded call with the same input. If several recorded calls have that input, the
    first call gets the first result, the second call the second one, and so on; the last result is repeated. A call
    that was not recorded fails with `UNAVAILABLE`; the error names the nearest recorded input.
    """
    recording = _read(Path(path))
    return [_replayed(spec, _Calls(spec.id, recording.calls[spec.id])) for spec in recording.specs.values()]


class Replay:
    """An interceptor that answers calls from a recording, as `replay_operations` describes; no handler runs."""

    def __init__(self, path: str | Path) -> None:
        recording = _read(Path(path))
        self._calls = {operation_id: _Calls(operation_id, calls) for operation_id, calls in recording.calls.items()}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Return the recorded result."""
        calls = self._calls.get(invocation.spec.id) or _Calls(invocation.spec.id, [])
        if invocation.streaming:
            return calls.stream(invocation.input)
        return calls.result(invocation.input)


class _Recording(msgspec.Struct):
    specs: dict[str, OperationSpec]
    calls: defaultdict[str, list[Mapping[str, Any]]]


class _Calls:
    """The recorded calls of one operation."""

    def __init__(self, operation_id: str, calls: list[Mapping[str, Any]]) -> None:
        self._operation_id = operation_id
        self._calls = calls
        self._used: set[int] = set()
        self._redactor = Redactor()

    def result(self, input: Any) -> ResponseEnvelope[Any]:
        call = self._find(input, "result")
        if "result" not in call:
            raise CallError.from_dict(call["error"])
        return ResponseEnvelope.from_dict(call["result"])

    async def stream(self, input: Any) -> AsyncIterator[ResponseEnvelope[Any]]:
        call = self._find(input, "events")
        for event in call.get("events", ()):
            yield ResponseEnvelope.from_dict(event)
        if "error" in call:
            raise CallError.from_dict(call["error"])

    def _find(self, input: Any, kind: str) -> Mapping[str, Any]:
        value = {} if input is None else _plain(input)
        found = [
            index
            for index, call in enumerate(self._calls)
            if (kind in call or "error" in call) and _matches(call["input"], value)
        ]
        if not found:
            raise self._unmatched(value)
        index = next((each for each in found if each not in self._used), found[-1])
        self._used.add(index)
        return self._calls[index]

    def _unmatched(self, input: Any) -> CallError:
        # The input may contain secrets, and the error may be logged.
        asked = _shown(self._redactor.data(input))
        message = f"{self._operation_id}: no recorded call matches the input {asked[:_MAX_SHOWN]}"
        candidates = [_shown(call["input"]) for call in self._calls[:_MAX_COMPARED]]
        nearest = max(
            candidates, key=lambda each: SequenceMatcher(None, each[:2000], asked[:2000]).ratio(), default=None
        )
        if nearest is not None:
            message += f"; the nearest recorded input is {nearest[:_MAX_SHOWN]}"
        details = {"operationId": self._operation_id, "reason": "NOT_RECORDED", "nearest": nearest, "executed": "no"}
        return CallError(ErrorCode.UNAVAILABLE, message, details)


def _replayed(spec: OperationSpec, calls: _Calls) -> Operation[Any]:
    async def handler(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        return calls.result(input)

    async def stream(input: Any, context: OperationContext) -> AsyncIterator[Any]:
        async for envelope in calls.stream(input):
            yield envelope

    if spec.type == "subscription":
        return Operation(spec=spec, stream=stream, dump=None)
    return Operation(spec=spec, handler=handler, stream=stream, dump=None)


def _matches(recorded: Any, given: Any) -> bool:
    """Whether an input equals the recorded one; a redacted value matches any value."""
    if recorded == REDACTED:
        return True
    if isinstance(recorded, bytes) and isinstance(given, bytes):
        recorded, given = (each.decode("utf-8", "surrogateescape") for each in (recorded, given))
    if isinstance(recorded, str) and isinstance(given, str) and REDACTED in recorded:
        return recorded == given or Redactor().text(given) == recorded or _matches_around(recorded, given)
    if isinstance(recorded, dict) and isinstance(given, Mapping):
        return recorded.keys() == given.keys() and all(_matches(each, given[key]) for key, each in recorded.items())
    if isinstance(recorded, list) and isinstance(given, (list, tuple)):
        return len(recorded) == len(given) and all(map(_matches, recorded, given))
    return type(recorded) is type(given) and bool(recorded == given)


def _matches_around(recorded: str, given: str) -> bool:
    """Whether `given` begins and ends like `recorded`, which is partly redacted."""
    parts = recorded.split(REDACTED)
    return given.startswith(parts[0]) and given.endswith(parts[-1])


def _read(path: Path) -> _Recording:
    recording = _Recording({}, defaultdict(list))
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = decode_json(line)
            if "spec" in entry:
                spec = OperationSpec.from_dict(entry["spec"])
                recording.specs[spec.id] = spec
            elif "call" in entry:
                recording.calls[entry["call"]["operation"]].append(entry["call"])
            elif entry["recording"] != _VERSION:
                raise CallError(ErrorCode.VALIDATION_ERROR, f"version {entry['recording']} is not supported")
        except (CallError, KeyError, TypeError) as error:
            message = f"{path}:{number}: not a recording: {error}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
    return recording


def _plain(value: Any) -> Any:
    """Return a value in its JSON form, or unchanged if it has none."""
    try:
        return jsonable(value)
    except CallError:
        return value


def _shown(value: Any) -> str:
    try:
        return encode_json(value).decode()
    except CallError:
        return repr(value)
