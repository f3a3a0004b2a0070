"""Telemetry: observers, metrics, OpenTelemetry, structured logs, the audit log.

Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.telemetry.audit import AuditLog
    from operations.telemetry.health import HealthServer, Readiness
    from operations.telemetry.logs import JSONFormatter, LogContext
    from operations.telemetry.metrics import METRICS, CallMetrics, Measurable, Measure
    from operations.telemetry.observer import (
        Call,
        CallQueued,
        CallRetried,
        CallSized,
        ConnectionChanged,
        EventObserver,
        Observation,
        Observer,
    )
    from operations.telemetry.prometheus import metrics_text

__all__ = [
    "AuditLog",
    "Call",
    "CallMetrics",
    "CallQueued",
    "CallRetried",
    "CallSized",
    "ConnectionChanged",
    "EventObserver",
    "HealthServer",
    "JSONFormatter",
    "LogContext",
    "METRICS",
    "Measurable",
    "Measure",
    "Observation",
    "Observer",
    "Readiness",
    "metrics_text",
]

_HOMES = {
    "audit": ("AuditLog",),
    "health": ("HealthServer", "Readiness"),
    "logs": ("JSONFormatter", "LogContext"),
    "metrics": ("METRICS", "CallMetrics", "Measurable", "Measure"),
    "observer": (
        "Call",
        "CallQueued",
        "CallRetried",
        "CallSized",
        "ConnectionChanged",
        "EventObserver",
        "Observation",
        "Observer",
    ),
    "prometheus": ("metrics_text",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"operations.telemetry.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
