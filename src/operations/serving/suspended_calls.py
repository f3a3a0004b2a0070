"""SuspendedCalls: calls that wait for an answer of their caller between two requests.

A handler that asks a question is suspended in its own task. The caller receives the open questions and an encrypted
state. Its next request contains the state and the answers, and the handler continues. A process that does not run the
handler runs the operation again with the recorded answers, if the operation allows that.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from operations.context import ELICIT, Client, Question, read_answer
from operations.dispatch import Slots
from operations.errors import CallError, ErrorCode
from operations.failures import unavailable
from operations.schema import from_schema

T = TypeVar("T")
Send = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, None]]

MAX_SUSPENDED = 1_000
MAX_PER_IDENTITY = 16
_MAX_STATE_BYTES = 64 * 1024
_KEPT_SECONDS = 60.0
"""How long a suspended call is kept after its question expired."""
_CAPABILITIES = {ELICIT: "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
_ASSOCIATED = b"operations/ask/1"


class InvalidStateError(Exception):
    """A state that this server did not create, that belongs to another call, or that has expired."""


class CallKey(msgspec.Struct, frozen=True):
    """The call that a state belongs to: operation, input and caller."""

    operation_id: str
    input_hash: str
    identity: str | None

    @classmethod
    def of(cls, operation_id: str, input: Any, identity: str | None) -> CallKey:
        """Return the key of a call."""
        encoded = msgspec.json.encode(input, order="deterministic")
        return cls(operation_id, hashlib.blake2b(encoded, digest_size=16).hexdigest(), identity)


class InputRequired(msgspec.Struct, frozen=True):
    """A suspended call: its open questions, and the state that the client returns with the answers."""

    questions: Mapping[str, Question]
    state: str


def capability_of(method: str) -> str | None:
    """Return the name of the client capability that a request needs."""
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


class _State(msgspec.Struct, array_like=True):
    """The content of an encrypted state."""

    suspended: str
    process: str
    round: int
    key: CallKey
    expires: float
    answers: list[tuple[str, Any]] | None
    """The answers so far, each with the hash of its question; None if they are too large to send."""


class _Open(msgspec.Struct, eq=False):
    question: Question
    answered: asyncio.Future[Any]


class ReleasableSlots(Protocol):
    """The slots of a dispatcher."""

    def released(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Free the slot of a call within the block."""


class AskingClient:
    """The client of one call, as `context.ask` uses it."""

    def __init__(
        self, slots: ReleasableSlots, capabilities: Any, send: Send | None, has_room: Callable[[], bool]
    ) -> None:
        self.open: dict[str, _Open] = {}
        self.given: dict[str, Any] = {}
        """Answers by key that arrived before their question."""
        self.recorded: list[tuple[str, Any]] = []
        """Answers of an earlier run in their order, each with the hash of its question."""
        self.answers: list[tuple[str, Any]] | None = []
        self.expires = 0.0
        self.changed: Callable[[], None] = lambda: None
        self._slots = slots
        self._capabilities = capabilities
        self._send = send
        self._has_room = has_room

    def supports(self, method: str) -> bool:
        """Whether the client declared the capability that a request needs."""
        return has_capability(self._capabilities, method)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, if the request of the call is still open."""
        if self._send is not None:
            await self._send(method, params)

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Return the answers to questions, recorded ones included; wait for the others."""
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


class _SuspendedCall(Generic[T]):
    """A call whose handler runs in its own task."""

    def __init__(self, key: CallKey, client: AskingClient, work: Coroutine[Any, Any, T]) -> None:
        self.id = os.urandom(16).hex()
        self.key = key
        self.client = client
        self.round = 0
        self.is_waited_for = False
        self.timer: asyncio.TimerHandle | None = None
        self._settled: asyncio.Future[None] | None = None
        client.changed = self._wake
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: self._wake())

    def _wake(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def settle(self) -> bool:
        """Wait until the call ends (True) or asks a question (False). Cancelling the wait cancels the call."""
        self.is_waited_for = True
        try:
            while not self.task.done() and not self.client.open:
                self._settled = asyncio.get_running_loop().create_future()
                await self._settled
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            self.is_waited_for = False
        return self.task.done()

    async def cancel(self) -> None:
        """Cancel the call and wait up to a second for its handler."""
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,), timeout=1.0)
        _forget(self.task)


def _forget(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task, so that asyncio does not log it."""
    if task.done() and not task.cancelled():
        task.exception()


class SuspendedCalls:
    """Runs calls that may ask their caller, and keeps those that wait for an answer.

    `key` (32 bytes) encrypts the states. Processes with the same key can continue each other's calls if the operation
    allows that.
    """

    def __init__(self, slots: Slots, *, key: bytes | None = None, limit: int = MAX_SUSPENDED) -> None:
        if key is not None and len(key) != 32:
            raise ValueError(f"invalid key of {len(key)} bytes: expected 32")
        self._slots = slots
        self._key = key or os.urandom(32)
        self._process = os.urandom(8).hex()
        self._limit = limit
        self._kept: dict[str, _SuspendedCall[Any]] = {}
        self._by_identity: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    async def run(
        self,
        work: Callable[[Client], Coroutine[Any, Any, T]],
        key: CallKey,
        *,
        capabilities: Any = None,
        send: Send | None = None,
        responses: Any = None,
        state: str | None = None,
        replayable: bool = False,
    ) -> T | InputRequired:
        """Run a call, or continue the call of `state`, until it ends or asks a question."""
        answers = responses if isinstance(responses, Mapping) else {}
        suspended: _SuspendedCall[Any] | None = None
        recorded: list[tuple[str, Any]] = []
        if state is not None:
            opened = self._decrypt_state(state, key)
            suspended = self._continue(opened, answers)
            if suspended is None:
                recorded = self._recorded(opened, replayable)
        if suspended is None:
            client = AskingClient(self._slots, capabilities, send, lambda: self._has_room(key.identity))
            client.given = dict(answers)
            client.recorded = recorded
            suspended = _SuspendedCall(key, client, work(client))
        if await suspended.settle():
            self._drop(suspended)
            result: T = suspended.task.result()
            return result
        return self._suspend(suspended)

    async def close(self) -> None:
        """Cancel every suspended call."""
        for suspended in list(self._kept.values()):
            self._drop(suspended)
            await suspended.cancel()

    def _continue(self, state: _State, answers: Mapping[str, Any]) -> _SuspendedCall[Any] | None:
        if state.process != self._where:
            return None
        suspended = self._kept.get(state.suspended)
        if suspended is None or suspended.key != state.key:
            return None
        if suspended.is_waited_for:
            raise InvalidStateError("another request is waiting for this call")
        if state.round == suspended.round:
            for key, result in answers.items():
                suspended.client.answer(key, result)
        return suspended

    @staticmethod
    def _recorded(state: _State, replayable: bool) -> list[tuple[str, Any]]:
        if not replayable or state.answers is None:
            raise unavailable(state.key.operation_id, "the suspended call no longer exists", "unknown")
        return list(state.answers)

    def _suspend(self, suspended: _SuspendedCall[Any]) -> InputRequired:
        if suspended.id not in self._kept:
            self._kept[suspended.id] = suspended
            self._by_identity[suspended.key.identity] += 1
        suspended.round += 1
        if suspended.timer is not None:
            suspended.timer.cancel()
        wait = max(0.0, suspended.client.expires - time.time()) + _KEPT_SECONDS
        suspended.timer = asyncio.get_running_loop().call_later(wait, self._expire, suspended)
        questions = {key: each.question for key, each in suspended.client.open.items()}
        return InputRequired(questions, self._encrypt_state(suspended))

    def _expire(self, suspended: _SuspendedCall[Any]) -> None:
        if not suspended.is_waited_for:
            self._drop(suspended)
            suspended.task.cancel()
            suspended.task.add_done_callback(_forget)

    def _drop(self, suspended: _SuspendedCall[Any]) -> None:
        if suspended.timer is not None:
            suspended.timer.cancel()
        if self._kept.pop(suspended.id, None) is not None:
            self._by_identity[suspended.key.identity] -= 1
            if not self._by_identity[suspended.key.identity]:
                del self._by_identity[suspended.key.identity]

    def _has_room(self, identity: str | None) -> bool:
        return len(self._kept) < self._limit and self._by_identity[identity] < MAX_PER_IDENTITY

    @property
    def _where(self) -> str:
        return f"{self._process}:{os.getpid()}"

    def _encrypt_state(self, suspended: _SuspendedCall[Any]) -> str:
        client = suspended.client
        state = _State(
            suspended.id, self._where, suspended.round, suspended.key, client.expires + _KEPT_SECONDS, client.answers
        )
        content = msgspec.json.encode(state)
        if len(content) > _MAX_STATE_BYTES:
            state.answers = client.answers = None
            content = msgspec.json.encode(state)
        nonce = os.urandom(12)
        return base64.urlsafe_b64encode(nonce + _cipher(self._key).encrypt(nonce, content, _ASSOCIATED)).decode()

    def _decrypt_state(self, state: str, key: CallKey) -> _State:
        from cryptography.exceptions import InvalidTag

        try:
            encrypted = base64.b64decode(state, altchars=b"-_", validate=True)
            content = _cipher(self._key).decrypt(encrypted[:12], encrypted[12:], _ASSOCIATED)
            read = msgspec.json.decode(content, type=_State)
        except (ValueError, InvalidTag, msgspec.DecodeError):
            raise InvalidStateError("the state was not created by this server") from None
        if read.key != key or read.expires < time.time():
            raise InvalidStateError("the state belongs to another call, or has expired")
        return read


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _hash(question: Question) -> str:
    encoded = msgspec.json.encode([question.method, question.params], order="deterministic")
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
