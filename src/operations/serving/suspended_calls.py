"""SuspendedCalls: calls that wait for an answer of their caller between two requests.

A handler that asks a question is suspended in its own task. The caller receives the open questions and an encrypted
state. Its next request contains the state and the answers, and the handler continues. A process that does not run the
handler runs the operation again with the recorded answers, if the operation allows that.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from operations.context import Client, Question
from operations.dispatch import Slots
from operations.failures import unavailable
from operations.serving.asking_client import AskingClient, Send

T = TypeVar("T")

MAX_SUSPENDED = 1_000
MAX_PER_IDENTITY = 16
_MAX_STATE_BYTES = 64 * 1024
_KEPT_SECONDS = 60.0
"""How long a suspended call is kept after its question expired."""
_ASSOCIATED = b"operations/ask/1"


class InvalidStateError(Exception):
    """The state of a request is invalid or expired, is of another call, or is already used by a waiting request."""


class CallKey(msgspec.Struct, frozen=True):
    """Identifies the call that a state belongs to: operation, hash of the input, and caller."""

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


class _State(msgspec.Struct, array_like=True):
    """The content of an encrypted state."""

    suspended: str
    process: str
    round: int
    key: CallKey
    expires: float
    answers: list[tuple[str, Any]] | None
    """The answers that the caller has given, each with the hash of its question; None if they are too large to send."""


class _SuspendedCall(Generic[T]):
    """A call whose handler runs in its own task."""

    def __init__(self, key: CallKey, owner: str, client: AskingClient, work: Coroutine[Any, Any, T]) -> None:
        self.id = os.urandom(16).hex()
        self.key = key
        self.owner = owner
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
        """Wait until the call ends or asks a question; return whether it has ended.

        If this wait is cancelled, the call is cancelled too.
        """
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

    def __init__(self, slots: Slots, *, key: bytes | None = None) -> None:
        if key is not None and len(key) != 32:
            raise ValueError(f"invalid key of {len(key)} bytes: expected 32")
        self._slots = slots
        self._key = key or os.urandom(32)
        self._process = os.urandom(8).hex()
        self._kept: dict[str, _SuspendedCall[Any]] = {}
        self._by_owner: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    async def run(
        self,
        work: Callable[[Client], Coroutine[Any, Any, T]],
        key: CallKey,
        *,
        owner: str = "",
        capabilities: Any = None,
        send: Send | None = None,
        responses: Any = None,
        state: str | None = None,
        replayable: bool = False,
    ) -> T | InputRequired:
        """Run a call, or continue the call of `state`; return its result, or InputRequired if it asks a question.

        `owner` is the `Caller.key` of the caller for whose limit of suspended calls this call counts.
        """
        answers = responses if isinstance(responses, Mapping) else {}
        suspended: _SuspendedCall[Any] | None = None
        recorded: list[tuple[str, Any]] = []
        if state is not None:
            opened = self._decrypt_state(state, key)
            suspended = self._continue(opened, answers)
            if suspended is None:
                recorded = self._recorded(opened, replayable)
        if suspended is None:
            client = AskingClient(self._slots, capabilities, send, lambda: self._has_room(owner))
            client.given = dict(answers)
            client.recorded = recorded
            suspended = _SuspendedCall(key, owner, client, work(client))
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
            self._by_owner[suspended.owner] += 1
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
            self._by_owner[suspended.owner] -= 1
            if not self._by_owner[suspended.owner]:
                del self._by_owner[suspended.owner]

    def _has_room(self, owner: str) -> bool:
        return len(self._kept) < MAX_SUSPENDED and self._by_owner[owner] < MAX_PER_IDENTITY

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
