"""Handlers that make nested calls in every possible way, and check with which rights they run.

Everything runs in one process, so that the test knows of each call who made it, through which workers, and whether it
may run. An operation's input is only the number of the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from operations import AccessControl, CallError, Identity, OperationContext, operation
from operations.calls import PendingRequestMap
from operations.context import Grant
from tests.security.rights_bus import NAMESPACES, SCOPES, Bus, Member

NAMES = ("run", "plain", "follow", *SCOPES)
DEEPEST = 5
MARGIN = 0.01
"""Seconds by which a call must be sent after the end of a right to be certain that it must not run."""
LONGEST = 4.0
"""Seconds after which any call has ended."""


@dataclass(eq=False)
class Step:
    """A nested call that a handler makes, drawn before the schedule knows who will run it."""

    way: str
    operation_id: str
    holds: bool
    steps: list[Step] = field(default_factory=list)
    clean_up: list[Step] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """One call, and what the test knows about it before it is sent."""

    number: int
    step: Step
    expected: Identity | None
    """The identity that its handler must run as."""
    deadline: int
    root_deadline: int
    request: Request | None = None
    """The request that it belongs to, if it runs in its worker's own process."""
    forbidden: str = ""
    """Why it must not run."""
    runs: int = 0


@dataclass(eq=False)
class Request:
    """A request that one worker runs, and its grant."""

    call: Call
    worker: Member
    grant: Grant | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float | None = None
    cancelled_at: float | None = None

    def why_over(self, bus: Bus) -> str:
        """Return why a call that is sent now must not run; empty if it may."""
        now = time.monotonic()
        if self.ended_at is not None and now > self.ended_at + MARGIN:
            return "its handler has ended"
        if self.cancelled_at is not None and now > self.cancelled_at + bus.closing_seconds + MARGIN:
            return "the time for cleaning up is over"
        if time.time() > (self.call.deadline if bus.knows_ends else self.call.root_deadline) / 1000 + MARGIN:
            return "its deadline has passed"
        return ""


class Handlers:
    """The handlers of all workers, the calls that were made, and the violations."""

    def __init__(self, bus: Bus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.calls: dict[int, Call] = {}
        self.done: Counter[str] = Counter()
        self.violations: list[str] = []
        self.requests: deque[Request] = deque(maxlen=50)
        """The last requests of workers."""
        self.held: list[asyncio.Event] = []
        """The events that handlers wait for."""
        self.spawned: set[asyncio.Task[Any]] = set()
        """Tasks that no handler waits for."""
        self.loop = asyncio.get_running_loop()
        # A plain function occupies a thread until the calls that it makes have ended, which may need threads too.
        self.loop.set_default_executor(ThreadPoolExecutor(200))

    def draw_step(self, depth: int, way: str | None = None) -> Step:
        operation_id = f"{self.random.choice(NAMESPACES)}.{self.random.choice(NAMES)}"
        step = Step(way or self.random.choice(WAYS), operation_id, self.random.random() < 0.3)
        while depth < DEEPEST and self.random.random() < 0.5:
            step.steps.append(self.draw_step(depth + 1))
        if depth < DEEPEST and self.random.random() < 0.2:
            step.clean_up.append(self.draw_step(depth + 1))
        return step

    def draw_scopes(self) -> tuple[str, ...]:
        return tuple(scope for scope in SCOPES if self.random.random() < 0.5)

    def draw_deadline(self) -> int:
        seconds = self.random.uniform(0.02, 0.2) if self.random.random() < 0.1 else LONGEST
        return int((time.time() + seconds) * 1000)

    def new_call(self, step: Step, expected: Identity | None, deadline: int, root_deadline: int | None = None) -> Call:
        root_deadline = root_deadline or deadline
        call = self.calls[len(self.calls)] = Call(len(self.calls), step, expected, deadline, root_deadline)
        name = step.operation_id.rpartition(".")[2]
        if name in SCOPES and (expected is None or name not in expected.scopes):
            call.forbidden = f"its caller has no scope {name}"
        return call

    def ended(self, task: asyncio.Task[None]) -> None:
        self.spawned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, CallError):
            self.violations.append(f"{error!r}")

    async def ask(self, pending: PendingRequestMap, call: Call, **options: Any) -> None:
        """Send a call and check the identity that it ran as."""
        step, input = call.step, {"number": call.number}
        try:
            if step.operation_id.endswith(".follow"):
                options.pop("retry", None)
                options.pop("wait", None)
                stream = pending.subscribe(step.operation_id, input, deadline=call.deadline, **options)
                async with contextlib.aclosing(stream):  # type: ignore[type-var]
                    async for envelope in stream:
                        self.check_answer(call, envelope.data)
                        if step.holds:
                            break
            else:
                envelope = await pending.call(step.operation_id, input, deadline=call.deadline, **options)
                self.check_answer(call, envelope.data)
        except CallError as error:
            self.note_error(call, error)

    def check_answer(self, call: Call, data: Any) -> None:
        self.done[f"answered {call.step.way}"] += 1
        if data != call.number:
            self.violations.append(f"call {call.number} got the answer {data}")
        elif call.forbidden:
            self.violations.append(f"call {call.number} was answered although {call.forbidden}")

    def note_error(self, call: Call, error: CallError) -> None:
        self.done[f"{error.code!s} {error.details.get('reason', '')}".strip()] += 1

    def operations(self, worker: Member) -> list[Any]:
        namespace = worker.namespace

        def guarded(scope: str) -> Any:
            @operation(id=f"{namespace}.{scope}", access_control=AccessControl(required_scopes=[scope]))
            async def handler(number: int, context: OperationContext) -> int:
                return await self._handle(worker, number, context, scope)

            return handler

        @operation(id=f"{namespace}.run")
        async def run(number: int, context: OperationContext) -> int:
            return await self._handle(worker, number, context)

        @operation(id=f"{namespace}.plain")
        def plain(number: int, context: OperationContext) -> int:
            return self._handle_in_thread(worker, number, context)

        @operation(id=f"{namespace}.follow", type="subscription")
        async def follow(number: int, context: OperationContext) -> AsyncGenerator[int, None]:
            request = self._begin(worker, number, context)
            try:
                yield number
                for step in self.calls[number].step.steps:
                    await self._take(step, request, context)
                    yield number
            except BaseException:
                self._note_cancelled(request)
                raise
            finally:
                await self._finish(request, number, context)

        return [run, plain, follow, *map(guarded, SCOPES)]

    async def _handle(self, worker: Member, number: int, context: OperationContext, scope: str = "") -> int:
        request = self._begin(worker, number, context, scope)
        try:
            if self.calls[number].step.holds:
                await self._hold()
            for step in self.calls[number].step.steps:
                await self._take(step, request, context)
            return number
        except asyncio.CancelledError:
            self._note_cancelled(request)
            raise
        finally:
            await self._finish(request, number, context)

    def _handle_in_thread(self, worker: Member, number: int, context: OperationContext) -> int:
        """Handle a call in a plain function, which an abort does not interrupt; its rights end anyway."""
        request = self._begin(worker, number, context)
        try:
            for step in self.calls[number].step.steps:
                call = self._nest(replace(step, way="plain"), request, context, remote=True)
                asyncio.run_coroutine_threadsafe(self.ask(worker.pending, call), self.loop).result(2 * LONGEST)
            return number
        finally:
            self._end_request(request, number)

    def _begin(self, worker: Member, number: int, context: OperationContext, scope: str = "") -> Request:
        """Check with which rights a handler runs."""
        call, identity = self.calls[number], context.identity
        call.runs += 1
        self.done[f"ran {call.step.way}"] += 1
        if call.forbidden:
            self.violations.append(f"call {number} ({call.step.way}) ran as {identity} although {call.forbidden}")
        elif not _is_same(identity, call.expected):
            self.violations.append(f"call {number} ({call.step.way}) ran as {identity}, not as {call.expected}")
        elif scope and (identity is None or scope not in identity.scopes):
            self.violations.append(f"call {number} ran as {identity} without the scope {scope}")
        if call.request is not None:
            return call.request
        request = Request(call, worker, context.grant)
        self.requests.append(request)
        return request

    def _note_cancelled(self, request: Request) -> None:
        if request.cancelled_at is None and not request.worker.is_closing:
            request.cancelled_at = time.monotonic()

    async def _finish(self, request: Request, number: int, context: OperationContext) -> None:
        """Call in `finally`, immediately or after the time for cleaning up."""
        step = self.calls[number].step
        try:
            if step.holds and request.cancelled_at is not None:
                await asyncio.sleep(self.bus.closing_seconds + 2 * MARGIN)
                await self._take(Step("direct", f"{NAMESPACES[0]}.run", holds=False), request, context)
            for each in step.clean_up:
                await self._take(each, request, context)
        finally:
            self._end_request(request, number)

    def _end_request(self, request: Request, number: int) -> None:
        if self.calls[number] is request.call and request.ended_at is None:
            request.ended_at = time.monotonic()
            self.loop.call_soon_threadsafe(request.ended.set)

    async def _hold(self) -> None:
        event = asyncio.Event()
        self.held.append(event)
        await event.wait()

    def release_all(self) -> None:
        while self.held:
            self.held.pop().set()

    def _nest(self, step: Step, request: Request, context: OperationContext, *, remote: bool) -> Call:
        """Return a nested call, with the rights that it must have if it is sent now."""
        parent = context.identity
        expected = self.bus.nested_identity(request.worker.principal, parent) if remote else parent
        deadline = request.call.deadline
        if step.way not in ("env", "registry"):  # these ways set no deadline
            deadline = min(deadline, self.draw_deadline())
        call = self.new_call(step, expected, deadline, request.call.root_deadline)
        if remote:
            call.forbidden = call.forbidden or request.why_over(self.bus)
        else:
            call.request = request
        return call

    async def _take(self, step: Step, request: Request, context: OperationContext) -> None:
        await getattr(self, f"_by_{step.way}")(step, request, context)

    async def _by_env(self, step: Step, request: Request, context: OperationContext) -> None:
        namespace, _, name = step.operation_id.rpartition(".")
        if name == "follow":
            return await self._by_direct(step, request, context)
        call = self._nest(step, request, context, remote=namespace != request.worker.namespace)
        try:
            self.check_answer(call, (await context.env[namespace][name](number=call.number)).data)
        except CallError as error:
            self.note_error(call, error)
        return None

    async def _by_direct(self, step: Step, request: Request, context: OperationContext) -> None:
        await self.ask(request.worker.pending, self._nest(step, request, context, remote=True))

    async def _by_registry(self, step: Step, request: Request, context: OperationContext) -> None:
        """Call through the operations that the worker imported."""
        assert request.worker.remote is not None
        if step.operation_id.endswith(".follow"):
            return
        call = self._nest(step, request, context, remote=True)
        try:
            envelope = await request.worker.remote.registry.execute(step.operation_id, {"number": call.number})
            self.check_answer(call, envelope.data)
        except CallError as error:
            self.note_error(call, error)

    async def _by_task(self, step: Step, request: Request, context: OperationContext) -> None:
        await asyncio.create_task(self._by_direct(step, request, context))

    async def _by_spawned(self, step: Step, request: Request, context: OperationContext) -> None:
        """Call in a task that the handler does not wait for."""
        self._spawn(self._by_direct(step, request, context))

    async def _by_late(self, step: Step, request: Request, context: OperationContext) -> None:
        """Call in a task that outlives the request."""

        async def late() -> None:
            await request.ended.wait()
            await asyncio.sleep(2 * MARGIN)
            way = "env" if step.holds else "direct"
            await self._take(replace(step, way=way), request, context)

        if step.operation_id.partition(".")[0] != request.worker.namespace:
            self._spawn(late())

    async def _by_thread(self, step: Step, request: Request, context: OperationContext) -> None:
        await asyncio.to_thread(self._ask_from_thread, self._nest(step, request, context, remote=True), request)

    async def _by_bare_thread(self, step: Step, request: Request, context: OperationContext) -> None:
        """Call in a thread without the context of the request."""
        call = self._nest(step, request, context, remote=True)
        call.forbidden = "a thread outside any request has no rights"
        await self.loop.run_in_executor(None, self._ask_from_thread, call, request)

    def _ask_from_thread(self, call: Call, request: Request) -> None:
        asyncio.run_coroutine_threadsafe(self.ask(request.worker.pending, call), self.loop).result(2 * LONGEST)

    async def _by_as_worker(self, step: Step, request: Request, context: OperationContext) -> None:
        """Ask for the worker's own rights within a request."""
        call = self._nest(step, request, context, remote=True)
        call.forbidden = "a request is no place for the worker's own rights"
        await self.ask(request.worker.pending, call, as_worker=True)

    async def _by_leaving(self, step: Step, request: Request, context: OperationContext) -> None:
        """Leave the request, and ask for the worker's own rights."""
        worker = request.worker
        call = self.new_call(step, worker.principal.identity, self.draw_deadline())
        self._spawn(self.ask(worker.pending, call, as_worker=True), contextvars.Context())

    def _spawn(self, work: Coroutine[Any, Any, None], context: contextvars.Context | None = None) -> None:
        task = self.loop.create_task(work, context=context)
        self.spawned.add(task)
        task.add_done_callback(self.ended)


WAYS = [name.removeprefix("_by_") for name in vars(Handlers) if name.startswith("_by_")]
"""How a handler makes a nested call."""


def _is_same(first: Identity | None, second: Identity | None) -> bool:
    if first is None or second is None:
        return first is second
    return msgspec.json.encode(first) == msgspec.json.encode(second)
