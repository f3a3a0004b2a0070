"""Audit: one record for each served call, without its input and result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

import msgspec

from operations.serving.admission import Caller

logger = logging.getLogger("operations.audit")


class AuditRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The caller, operation and outcome of one call."""

    protocol: str
    operation_id: str
    caller: str | None = None
    """The id of the caller's identity; None for an anonymous caller."""
    address: str = ""
    request_id: str = ""
    code: str = "OK"
    status: int | None = None
    milliseconds: float = 0.0


Audit = Callable[[AuditRecord], None]


def log_record(record: AuditRecord) -> None:
    """Write a record as one line of JSON to the logger `operations.audit`."""
    logger.info("%s", msgspec.json.encode(record).decode())


class AuditWriter:
    """Passes the record of each call to `write`; by default, writes it to the logger `operations.audit`."""

    def __init__(self, write: Audit | None = None) -> None:
        self._write = write or log_record
        self._is_logger = write is None

    @property
    def is_on(self) -> bool:
        """Whether records are written."""
        return not self._is_logger or logger.isEnabledFor(logging.INFO)

    def record(
        self,
        protocol: str,
        operation_id: str,
        caller: Caller,
        *,
        request_id: str,
        code: str,
        status: int | None,
        began: float,
    ) -> None:
        """Record one call; `began` is the start of the call, as a time of `perf_counter`."""
        identity = caller.identity
        self._write(
            AuditRecord(
                protocol=protocol,
                operation_id=operation_id,
                caller=identity.id if identity is not None else None,
                address=caller.client_address,
                request_id=request_id,
                code=code,
                status=status,
                milliseconds=round((perf_counter() - began) * 1000, 3),
            )
        )
