"""Viewer: what one caller may see and do in the console. Only the identity gives rights; knowing an id gives none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from operations.serving.admission import Caller
from operations.serving.exposure import Exposure
from operations.spec import Operation
from operations.telemetry.call_records import CallRecord, caller_name

WATCH = "operations:watch"
"""Scope of identities that see workers, metrics, and others' calls to operations that they may call themselves."""
MANAGE = "operations:manage"
"""Scope of identities that may cancel others' calls, if they see these calls (`WATCH`)."""


class Viewer:
    """The rights of one caller. On a server without an authenticator (`is_open`) every caller may watch and manage."""

    def __init__(self, caller: Caller, exposure: Exposure, *, is_open: bool) -> None:
        self.caller = caller
        self.is_open = is_open
        self.identity = caller.identity
        self.name = caller_name(caller.identity)
        self.is_known = is_open or caller.principal is not None
        """Whether recorded calls can be attributed to the caller.

        False for an anonymous caller of a server with an authenticator, because all such callers look the same.
        """
        scopes = caller.identity.scopes if caller.identity is not None and caller.principal is not None else ()
        self.may_watch = is_open or WATCH in scopes
        self.may_manage = is_open or MANAGE in scopes
        self._exposure = exposure

    @cached_property
    def operations(self) -> Mapping[str, Operation[Any]]:
        """The operations that the caller may call, by id, as of the first access."""
        return self._exposure.visible(self.identity)

    def is_own(self, record: CallRecord) -> bool:
        """Whether the caller made a call, or the outer call of a nested one.

        A server without an authenticator cannot distinguish callers: there, every call counts as the caller's.
        """
        return self.is_known and record.caller == self.name and (self.name is not None or self.is_open)

    def sees(self, record: CallRecord) -> bool:
        """Whether the console shows the caller this call."""
        return self.is_own(record) or (self.may_watch and record.operation_id in self.operations)

    def may_cancel(self, record: CallRecord) -> bool:
        """Whether the caller may cancel a call."""
        return self.is_own(record) or (self.may_manage and self.sees(record))
