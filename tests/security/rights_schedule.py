"""Random schedules of nested calls, aborts and lost connections.

What is drawn depends on the seed alone; the order in which calls meet depends on the machine too.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from operations import Identity, OperationRegistry
from operations.calls import PendingRequestMap, from_call
from operations.context import current_grant
from operations.identity import Principal
from tests.security.rights_bus import CALLERS, POOL, SCOPES, WORKERS, Bus, Member
from tests.security.rights_handlers import DEEPEST, LONGEST, Call, Handlers, Request

MOST_RUNNING = 24


class Schedule:
    """The members, and the calls that they have in flight."""

    def __init__(self, bus: Bus, seed: int, principals: Mapping[str, Principal]) -> None:
        self.bus = bus
        self.members = {name: Member(name, principal) for name, principal in principals.items()}
        self.handlers = Handlers(bus, seed)
        self.random = self.handlers.random
        self.running: dict[asyncio.Task[None], Call] = {}

    async def run(self, steps: int) -> None:
        """Take `steps` random steps, end everything, and fail if a handler ran with other rights."""
        for name in self.members:
            await self._open(self.members[name])
        actions, weights = zip(*self._actions().items(), strict=True)
        for _ in range(steps):
            self.handlers.done["steps"] += 1
            await self.random.choices(actions, weights)[0]()
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            while len(self.running) > MOST_RUNNING:
                self.handlers.release_all()
                await asyncio.wait(self.running, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            assert not self.handlers.violations, self.handlers.violations
        await self._drain()
        assert not self.handlers.violations, self.handlers.violations

    def _actions(self) -> dict[Callable[[], Coroutine[Any, Any, None]], int]:
        return {
            self._call: 40,
            self._release: 20,
            self._abort: 10,
            self._cut: 4,
            self._restart: 1,
            self._call_as_worker: 4,
            self._call_without_saying_so: 4,
            self._present_kept_grant: 10,
            self._let_pass: 5,
        }

    async def _open(self, member: Member) -> None:
        member.transport = await self.bus.open(member.name)
        member.pending = PendingRequestMap(member.transport)
        if member.name in WORKERS:
            registry = OperationRegistry(self.handlers.operations(member))
            member.handler = self.bus.serve(registry, member.transport, pool=member.name in POOL)
            member.remote = from_call(member.transport)
            await member.handler.registered()

    async def _drain(self) -> None:
        workers = [member.handler for member in self.members.values() if member.handler is not None]
        async with asyncio.timeout(60):
            # A handler that lost its caller together with the connection goes on, and may still start tasks.
            while self.running or self.handlers.spawned or any(worker.in_flight for worker in workers):
                self.handlers.release_all()
                await asyncio.sleep(0.01)
        await self.bus.check_idle()
        for request in list(self.handlers.requests):
            await self._present(request, request.worker)
        while self.running:
            await asyncio.wait(self.running)
        for member in self.members.values():
            await member.close(self.bus)

    async def _call(self) -> None:
        step = self.handlers.draw_step(0, "call")
        end = self.bus.trusted()
        if end is not None and self.random.random() < 0.1:
            identity = Identity(f"claimed{self.random.randrange(3)}", self.handlers.draw_scopes())
            call = self.handlers.new_call(step, identity, self.handlers.draw_deadline())
            self._start(call, self.handlers.ask(PendingRequestMap(end), call, identity=identity))
            return
        member = self.members[self.random.choice(CALLERS)]
        call = self.handlers.new_call(step, member.principal.identity, self.handlers.draw_deadline())
        self._start(call, self.handlers.ask(member.pending, call, retry=self.random.random() < 0.2))

    async def _abort(self) -> None:
        if self.running:
            self.random.choice(list(self.running)).cancel()

    async def _release(self) -> None:
        if self.handlers.held:
            self.handlers.held.pop(self.random.randrange(len(self.handlers.held))).set()

    async def _cut(self) -> None:
        self.bus.cut(self._any_member().transport)

    async def _restart(self) -> None:
        member = self._any_member()
        self.handlers.release_all()
        await member.close(self.bus)
        await self._open(member)

    async def _let_pass(self) -> None:
        if self.running:
            await asyncio.wait(self.running, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)

    async def _call_as_worker(self) -> None:
        worker = self._any_worker()
        call = self.handlers.new_call(
            self.handlers.draw_step(1, "own rights"), worker.principal.identity, self.handlers.draw_deadline()
        )
        self._start(call, self.handlers.ask(worker.pending, call, as_worker=True))

    async def _call_without_saying_so(self) -> None:
        worker = self._any_worker()
        call = self.handlers.new_call(self.handlers.draw_step(1, "no grant"), None, self.handlers.draw_deadline())
        call.forbidden = "a worker outside any request did not ask for its own rights"
        wait = self.random.random() < 0.5
        if self.random.random() < 0.5:
            self.bus.cut(worker.transport)
        self._start(call, self.handlers.ask(worker.pending, call, wait=wait, retry=wait))

    async def _present_kept_grant(self) -> None:
        """Present the grant of a request, running or over, as a worker that keeps grants or as another member."""
        if self.handlers.requests:
            request = self.random.choice(self.handlers.requests)
            await self._present(request, self.random.choice([request.worker, request.worker, self._any_member()]))

    async def _present(self, request: Request, member: Member) -> None:
        if request.grant is None:
            return
        step, parent = self.handlers.draw_step(DEEPEST, "kept grant"), request.call
        identity = self.bus.nested_identity(request.worker.principal, parent.expected)
        deadline = min(int((time.time() + LONGEST) * 1000), parent.deadline)
        call = self.handlers.new_call(step, identity, deadline, parent.root_deadline)
        if self.bus.knows_ends:
            call.forbidden = call.forbidden or request.why_over(self.bus)
            if member is not request.worker:
                call.forbidden = "the grant is another worker's"
        elif member.name not in WORKERS:
            return  # a caller has no secret to sign with
        origin = member.pending._endpoint
        kept = msgspec.structs.replace(request.grant, origin=origin, ended=False, identity=Identity("forged", SCOPES))
        context = contextvars.Context()
        context.run(current_grant.set, kept)
        self._start(call, self.handlers.ask(member.pending, call), context)

    def _any_worker(self) -> Member:
        return self.members[self.random.choice(WORKERS)]

    def _any_member(self) -> Member:
        return self.random.choice(list(self.members.values()))

    def _start(self, call: Call, work: Coroutine[Any, Any, None], context: contextvars.Context | None = None) -> None:
        task = self.handlers.loop.create_task(work, context=context or contextvars.Context())
        self.running[task] = call
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self.running[task]
        self.handlers.ended(task)
