"""AskingClient: passes a handler's questions (`context.ask`) to the client of the call, and waits for the answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from operations.context import ELICIT, Question, read_answer
from operations.errors import CallError, ErrorCode
from operations.schema import from_schema

Send = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, None]]
_CAPABILITIES = {ELICIT: "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def capability_of(method: str) -> str | None:
    """Return the capability that a client must declare to receive a request; None for an unknown method."""
    return _CAPABILITIES.get(method)


def has_capability(capabilities: Any, method: str) -> bool:
    """Whether the capabilities of a client include the one that a request needs."""
    name = _CAPABILITIES.get(method)
    return name is not None and isinstance(capabilities, Mapping) and isinstance(capabilities.get(name), Mapping)


def is_usable(question: Question, result: Any) -> bool:
    """Whether a client's result is a valid answer to a question."""
    if not isinstance(result, Mapping):
        return False
    if question.method == "sampling/createMessage":
        return isinstance(result.get("content"), Mapping | list)
    if question.method == "roots/list":
        return isinstance(result.get("roots"), list)
    if question.method != ELICIT:
        return True
    try:
        answer = read_answer(result)
    except CallError:
        return False
    schema = question.params.get("requestedSchema")
    return not answer.is_accepted or schema is None or from_schema(schema).check(dict(answer.content))


class _Open(msgspec.Struct, eq=False):
    question: Question
    answered: asyncio.Future[Any]


class ReleasableSlots(Protocol):
    """The slots of a dispatcher. A call releases its slot while it waits for an answer."""

    def released(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Release the slot of the current call; at the end of the block, wait for a slot again."""


class AskingClient:
    """The client of one call, to which `context.ask` sends questions."""

    def __init__(
        self, slots: ReleasableSlots, capabilities: Any, send: Send | None, has_room: Callable[[], bool]
    ) -> None:
        self.open: dict[str, _Open] = {}
        self.given: dict[str, Any] = {}
        """Answers that arrived before the handler asked their question, by the key of the question."""
        self.recorded: list[tuple[str, Any]] = []
        """Answers of an earlier run in their order, each with the hash of its question."""
        self.answers: list[tuple[str, Any]] | None = []
        self.expires = 0.0
        self.changed: Callable[[], None] = lambda: None
        self._slots = slots
        self._supported = frozenset(method for method in _CAPABILITIES if has_capability(capabilities, method))
        self._send = send
        self._has_room = has_room

    def supports(self, method: str) -> bool:
        """Whether the client declared the capability that a request needs."""
        return method in self._supported

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification to the client; do nothing if there is no `send`, as for a task."""
        if self._send is not None:
            await self._send(method, params)

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Return an answer to each question: a stored answer, or else the answer of the client."""
        results = {key: self._find(key, question) for key, question in questions.items()}
        waiting = {key: question for key, question in questions.items() if results[key] is None}
        if waiting:
            results.update(await self._wait(waiting, timeout))
        return results

    def answer(self, key: str, result: Any) -> None:
        """Store the client's answer to an open question. An invalid answer leaves the question open."""
        asked = self.open.get(key)
        if asked is not None and not asked.answered.done() and is_usable(asked.question, result):
            asked.answered.set_result(result)
            del self.open[key]

    def _find(self, key: str, question: Question) -> Any:
        digest = _hash(question)
        if self.recorded and self.recorded[0][0] == digest:
            result = self.recorded.pop(0)[1]
        else:
            result = self.given.pop(key, None)
        if result is None or not is_usable(question, result):
            return None
        self._record(digest, result)
        return result

    async def _wait(self, questions: Mapping[str, Question], timeout: float) -> dict[str, Any]:
        if not self._has_room():
            message = "too many calls wait for answers"
            raise CallError(ErrorCode.UNAVAILABLE, message, {"reason": "TOO_MANY_QUESTIONS"})
        loop = asyncio.get_running_loop()
        asked: dict[str, tuple[str, _Open]] = {}
        for key, question in questions.items():
            free = key if key not in self.open else f"{key}-{len(self.open) + 1}"
            asked[key] = free, _Open(question, loop.create_future())
            self.open[free] = asked[key][1]
        self.expires = max(self.expires, time.time() + timeout)
        self.changed()
        try:
            async with self._slots.released(), asyncio.timeout(timeout):
                await asyncio.wait([each.answered for _, each in asked.values()])
        except TimeoutError:
            message = f"no answer within {timeout:g} s"
            raise CallError(ErrorCode.TIMEOUT, message, {"reason": "NO_ANSWER"}) from None
        finally:
            for free, each in asked.values():
                if self.open.get(free) is each:
                    del self.open[free]
        results = {key: each.answered.result() for key, (_, each) in asked.items()}
        for key, result in results.items():
            self._record(_hash(questions[key]), result)
        return results

    def _record(self, digest: str, result: Any) -> None:
        if self.answers is not None:
            self.answers.append((digest, result))


def _hash(question: Question) -> str:
    encoded = msgspec.json.encode([question.method, question.params], order="deterministic")
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
