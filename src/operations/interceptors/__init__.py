"""Interceptors: async callables around every `execute` and `subscribe` of a registry, such as `Cache` and `Retry`.

Names are imported on first use: a program loads only the interceptors that it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.interceptors.approval import Approval, ApprovalPolicy, ApprovalRequest, Approved, Ask, Refused
    from operations.interceptors.base import Interceptor, Invocation, Only, Proceed, applies, asks, choose, compose
    from operations.interceptors.cache import Cache
    from operations.interceptors.call_log import LogCalls
    from operations.interceptors.circuit_breaker import CircuitBreaker
    from operations.interceptors.limits import ConcurrencyLimit, RateLimit, ResponseLimit
    from operations.interceptors.redaction import SECRET_NAMES, Redact
    from operations.interceptors.retry import Retry

__all__ = [
    "Approval",
    "ApprovalPolicy",
    "ApprovalRequest",
    "Approved",
    "Ask",
    "Cache",
    "CircuitBreaker",
    "ConcurrencyLimit",
    "Interceptor",
    "Invocation",
    "LogCalls",
    "Only",
    "Proceed",
    "RateLimit",
    "Redact",
    "Refused",
    "ResponseLimit",
    "Retry",
    "SECRET_NAMES",
    "applies",
    "asks",
    "choose",
    "compose",
]

_HOMES = {
    "approval": ("Approval", "ApprovalPolicy", "ApprovalRequest", "Approved", "Ask", "Refused"),
    "base": ("Interceptor", "Invocation", "Only", "Proceed", "applies", "asks", "choose", "compose"),
    "cache": ("Cache",),
    "call_log": ("LogCalls",),
    "circuit_breaker": ("CircuitBreaker",),
    "limits": ("ConcurrencyLimit", "RateLimit", "ResponseLimit"),
    "redaction": ("SECRET_NAMES", "Redact"),
    "retry": ("Retry",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"operations.interceptors.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
