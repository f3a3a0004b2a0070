"""SourceHolder: a source kept open in a task of its own, so that what it opens is closed by the task that opened it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from operations.config.clients import asks_user
from operations.config.consent import CONSENT_SECONDS, ShowConsent
from operations.config.models import Config, Source
from operations.config.openers import Opened, open_source
from operations.config.reports import SourceReport, failure_report
from operations.config.settings import MCPSettings
from operations.errors import CallError, ErrorCode

_log = logging.getLogger("operations.config")

Outcome = tuple[Opened | None, SourceReport]


class SourceHolder:
    """Opens one source and holds it open; whatever goes wrong is in the report, and harms no other source."""

    def __init__(self, config: Config, source: Source, show_consent: ShowConsent | None = None) -> None:
        self._config = config
        self._source = source
        self._show_consent = show_consent
        self._closing = asyncio.Event()
        self._is_open = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Outcome:
        """Open the source: what it offers, or None, and the report."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(outcome), name=f"source {self._source.name}")
        return await outcome

    async def close(self) -> None:
        """Close the source; one that is still opening is given up."""
        self._closing.set()
        if self._task is not None:
            if not self._is_open:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _hold(self, outcome: asyncio.Future[Outcome]) -> None:
        try:
            async with AsyncExitStack() as stack:
                found = await self._attempt(stack)
                if outcome.done():
                    return  # nobody waits for it any more
                self._is_open = found[0] is not None
                outcome.set_result(found)
                if self._is_open:
                    await self._closing.wait()
        except (Exception, SystemExit):  # noqa: BLE001  # one that does not close well keeps no other from it
            _log.warning("%s: the source did not close well", self._source.name, exc_info=True)
        finally:
            outcome.cancel()

    async def _attempt(self, stack: AsyncExitStack) -> Outcome:
        source, started = self._source, time.perf_counter()
        limit = source.settings.open_timeout
        if self._show_consent is not None and isinstance(source.settings, MCPSettings) and asks_user(source.settings):
            limit = max(limit, CONSENT_SECONDS)
        failure: BaseException
        try:
            async with asyncio.timeout(limit) as scope:
                opened = await open_source(source, stack, self._show_consent)
            seconds = time.perf_counter() - started
            count = len(opened.operations)
            report = SourceReport(name=source.name, kind=source.kind, state="ready", operations=count, seconds=seconds)
            return opened, report
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a source does, it is reported
            failure = error
        if scope.expired():
            failure = CallError(ErrorCode.TIMEOUT, f"it did not open within {limit:g} seconds")
        return None, failure_report(self._config, source, failure, time.perf_counter() - started)
