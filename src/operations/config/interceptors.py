"""Interceptors of a configuration: validates the tables of `[[interceptors]]` and creates the interceptors."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from operations.config.interceptor_settings import AnyInterceptor, InterceptorSettings
from operations.config.problems import Key, nearest
from operations.config.validation import Checker
from operations.interceptors import (
    Approval,
    Ask,
    Cache,
    CircuitBreaker,
    ConcurrencyLimit,
    Interceptor,
    LogCalls,
    Only,
    RateLimit,
    Redact,
    ResponseLimit,
    Retry,
)

_SELECTION = frozenset({*InterceptorSettings.__struct_fields__, "use"})
_KINDS: dict[str, type[AnyInterceptor]] = {
    typing.get_args(typing.get_type_hints(kind)["use"])[0]: kind for kind in typing.get_args(AnyInterceptor)
}
_MAKERS: dict[str, Callable[..., Interceptor]] = {
    "log": LogCalls,
    "retry": Retry,
    "rate-limit": RateLimit,
    "concurrency-limit": ConcurrencyLimit,
    "circuit-breaker": CircuitBreaker,
    "cache": Cache,
    "response-limit": ResponseLimit,
    "redact": Redact,
}


def read_interceptors(checker: Checker, tables: Sequence[Any], key: Key) -> list[AnyInterceptor]:
    """Return the settings of the valid tables of `[[interceptors]]`; report the problems of the others."""
    read = (_read(checker, table, (*key, number)) for number, table in enumerate(tables))
    return [settings for settings in read if settings is not None]


def make_interceptors(settings: Sequence[AnyInterceptor], ask: Ask | None = None) -> list[Interceptor]:
    """Create the interceptors of a configuration, the first outermost; `ask` decides on calls that need approval."""
    return [Only(_make(each, ask), each.operations, exclude=each.exclude, types=each.types) for each in settings]


def _read(checker: Checker, table: Any, key: Key) -> AnyInterceptor | None:
    use = table.get("use") if isinstance(table, Mapping) else None
    kind = _KINDS.get(use) if isinstance(use, str) else None
    if kind is None:
        if not isinstance(table, Mapping):
            checker.report(key, "expected a table")
        elif not isinstance(use, str):
            checker.report(key, f"missing use: expected one of {', '.join(_KINDS)}")
        else:
            checker.report((*key, "use"), f"unknown interceptor{nearest(use, _KINDS)}")
        return None
    settings: AnyInterceptor | None = checker.read(kind, table, key)
    if settings is not None:
        try:
            _make(settings, None)
        except ValueError as error:
            checker.report(key, str(error))
    return settings


def _make(settings: AnyInterceptor, ask: Ask | None) -> Interceptor:
    given = {name: value for name, value in msgspec.structs.asdict(settings).items() if name not in _SELECTION}
    if settings.use == "approval":
        return Approval({"*": settings.policy}, ask=ask, timeout=settings.timeout)
    if settings.use == "redact" and settings.fields is None:
        del given["fields"]
    return _MAKERS[settings.use](**given)
