"""Addresses as NATS subjects.

The name of a caller, or of the owner of an inbox, is a separate token, so that permissions on subjects can contain it.

| address | subject |
|---|---|
| `work.<namespace>/<operation>` | `calls.v1.work.<caller>.<namespace>.<operation>` |
| `direct.<peer>/<namespace>/<operation>` | `calls.v1.direct.<name>.<random>.<caller>.<namespace>.<operation>` |
| the record of a stored message | `calls.v1.record.<owner>.<random>.<namespace>` |
| `queue.<namespace>`, `suspect.<namespace>` | `calls.v1.queue.<caller>.<namespace>`, … |
| `inbox.<name>.<random>`, `peer.<name>.<random>` | `calls.v1.` and the address |
| `control.<namespace>`, `dead.<namespace>`, `workers`, `asks` | `calls.v1.` and the address |
"""

from __future__ import annotations

import re

from operations.pubsub.limits import check_name
from operations.pubsub.protocols import OWNER_LENGTH, Arrival

_TOKENS = re.compile(r"[!-)+-\-/-=?-~]+(\.[!-)+-\-/-=?-~]+)*")
_PEER = re.compile(r"[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}")
"""The name of a peer: `<name>.<random>`.

A third token is not allowed, because `inbox.<peer>.<token>` is a reply subject of the peer.
"""
_LONGEST = 1_024
"""The longest subject. It is limited because a server disconnects a client that sends lines of more than 4 kB."""
_MOST_ARRIVALS = 8_192


class Subjects:
    """The subjects of one peer: they begin with `prefix`, and `name` is the peer's name in them."""

    def __init__(self, prefix: str, name: str) -> None:
        if _TOKENS.fullmatch(prefix) is None:
            raise ValueError(f"invalid prefix {prefix!r}: expected tokens joined by dots, without wildcards")
        check_name(name)
        self.prefix = prefix
        self.name = name

    def target(self, address: str, *, caller: str | None = None) -> bytes | None:
        """Return the subject for an address; None if the address cannot be a subject.

        `caller` is the caller's name in the subject of a request, by default that of this peer.
        """
        caller = caller or self.name
        kind, _, rest = address.partition(".")
        if kind in ("inbox", "peer") and _PEER.fullmatch(rest) is None:
            return None
        if kind == "work":
            subject = f"{self.prefix}.work.{caller}.{rest.replace('/', '.', 1)}"
        elif kind == "direct":
            peer, _, operation = rest.partition("/")
            if _PEER.fullmatch(peer) is None:
                return None
            subject = f"{self.prefix}.direct.{peer}.{caller}.{operation.replace('/', '.', 1)}"
        elif kind in ("queue", "suspect"):
            subject = f"{self.prefix}.{kind}.{caller}.{rest}"
        else:
            subject = f"{self.prefix}.{address}"
        if len(subject) > _LONGEST or _TOKENS.fullmatch(subject) is None:
            return None
        return subject.encode()

    def record(self, address: str, key: str) -> bytes:
        """Return the subject of the record of a message that is stored at an address."""
        owner, random = key[:OWNER_LENGTH], key[OWNER_LENGTH:]
        subject = self.target(f"record.{owner}.{random}.{address.partition('.')[2]}")
        if subject is None:
            raise ValueError(f"{key!r} cannot be part of a NATS subject")
        return subject

    def read_record(self, subject: bytes) -> tuple[str, str]:
        """Return the address and the key that the subject of a record contains."""
        _, owner, random, namespace = subject[len(self.prefix) + 1 :].decode().split(".", 3)
        return f"queue.{namespace}", owner + random

    def direct_filter(self, address: str, peer: str) -> bytes:
        """Return the subject of requests to one worker, to which a worker at `work.<namespace>` also subscribes."""
        return f"{self.prefix}.direct.{peer}.*.{address.partition('.')[2]}.*".encode()

    def filter(self, address: str) -> bytes:
        """Return the subject to which a listener at an address subscribes: the messages of every caller."""
        kind, _, rest = address.partition(".")
        if kind == "work":
            return f"{self.prefix}.work.*.{rest}.*".encode()
        if kind in ("queue", "suspect"):
            return f"{self.prefix}.{kind}.*.{rest}".encode()
        subject = self.target(address)
        if subject is None:
            raise ValueError(f"{address!r} cannot be a NATS subject")
        return subject


class Arrivals(dict[bytes, Arrival]):
    """A cache of the `Arrival` for each subject.

    The `sender` is the caller's name in the subject. The server's permissions have to ensure that callers use only
    their own names.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._start = len(prefix) + 1

    def __missing__(self, subject: bytes) -> Arrival:
        kind, _, rest = subject[self._start :].decode(errors="replace").partition(".")
        if kind == "direct":
            _, _, rest = rest.split(".", 2)
        caller, _, target = rest.partition(".")
        if kind in ("work", "direct"):
            namespace, _, operation = target.rpartition(".")
            arrival = Arrival(f"work.{namespace}/{operation}", caller)
        elif kind in ("queue", "suspect"):  # a stored request, also a redelivered one
            arrival = Arrival(f"queue.{target}", caller)
        else:
            arrival = Arrival(subject[self._start :].decode(errors="replace"))
        if len(self) >= _MOST_ARRIVALS:
            self.clear()
        self[subject] = arrival
        return arrival
