"""Addresses as NATS subjects: the caller and the owner of an inbox are tokens of their own, for permissions to name.

| address | subject |
|---|---|
| `work.<namespace>/<operation>` | `calls.v1.work.<caller>.<namespace>.<operation>` |
| `queue.<namespace>`, `suspect.<namespace>` | `calls.v1.queue.<caller>.<namespace>`, … |
| `inbox.<name>-<random>` | `calls.v1.inbox.<name>.<random>` |
| `peer.<name>-<random>` | `calls.v1.peer.<name>.<random>` |
| `control.<namespace>`, `dead.<namespace>`, `workers`, `asks` | the same behind `calls.v1.` |
"""

from __future__ import annotations

import re

_TOKENS = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 1_024
"""A server hangs up on lines over 4 kB."""


class Subjects:
    """The subjects of one end, under a prefix, in the name of whoever it is."""

    def __init__(self, prefix: str, name: str) -> None:
        if _TOKENS.fullmatch(prefix) is None:
            raise ValueError(f"{prefix!r} cannot be the prefix of NATS subjects: tokens joined by dots, no wildcards")
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} cannot be a token of a NATS subject: use letters, digits, _ and -")
        self.prefix = prefix
        self.name = name

    def target(self, address: str) -> bytes | None:
        """Where a message for an address goes; None for one that no subject can be made of."""
        kind, _, rest = address.partition(".")
        if kind in ("inbox", "peer"):
            name, _, random = rest.rpartition("-")
            subject = f"{self.prefix}.{kind}.{name}.{random}"
        elif kind == "work":
            subject = f"{self.prefix}.work.{self.name}.{rest.replace('/', '.', 1)}"
        elif kind in ("queue", "suspect"):
            subject = f"{self.prefix}.{kind}.{self.name}.{rest}"
        else:
            subject = f"{self.prefix}.{address}"
        if len(subject) > _LONGEST or _TOKENS.fullmatch(subject) is None:
            return None
        return subject.encode()

    def filter(self, address: str) -> bytes:
        """What somebody who listens at an address subscribes to: the work of every caller."""
        kind, _, rest = address.partition(".")
        if kind == "work":
            return f"{self.prefix}.work.*.{rest}.*".encode()
        if kind in ("queue", "suspect"):
            return f"{self.prefix}.{kind}.*.{rest}".encode()
        subject = self.target(address)
        if subject is None:
            raise ValueError(f"{address!r} cannot be a NATS subject")
        return subject
