"""Control of a call by its caller: aborts and credit, and on a shared bus the proof that they are the caller's.

On Redis everybody who may call also hears what controls the calls of others. Such messages name a call by a hash of its
request id, and prove that their sender knows the id: only the caller and the worker do. A proof covers the whole
message, and credit is numbered, so that a message that was heard is of no use to anybody else.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from operations.calls.codec import Codec, writable
from operations.calls.events import VERSION, Aborted, CallAborted, CallCredit, Credit


def control_id(request_id: str) -> str:
    """Return the name of a call in messages that others hear.

    Whoever knows the id of another's request could have a worker send answers to it.
    """
    return blake2b(request_id.encode(errors="replace"), digest_size=16).hexdigest()


def write_abort(request_id: str, codec: Codec, reason: str, *, overheard: bool) -> bytes:
    """Return an abort as bytes; where it is `overheard`, with a proof."""
    payload = Aborted(request_id, writable(reason))
    if overheard:
        payload.proof = _prove(request_id, payload)
        payload.request_id = control_id(request_id)
    return codec.encode(CallAborted(VERSION, payload.request_id, "", payload))


def write_credit(request_id: str, codec: Codec, items: int, size: int, *, number: int | None) -> bytes:
    """Return credit as bytes; where it is overheard it has a number, and a proof."""
    payload = Credit(request_id, items, size)
    if number is not None:
        payload.number = number
        payload.proof = _prove(request_id, payload)
        payload.request_id = control_id(request_id)
    return codec.encode(CallCredit(VERSION, payload.request_id, "", payload))


def is_proven(request_id: str, payload: Aborted | Credit) -> bool:
    """Return whether the sender of a message knows the id of the request that it controls."""
    return hmac.compare_digest(_prove(request_id, payload).encode(), payload.proof.encode(errors="replace"))


def _prove(request_id: str, payload: Aborted | Credit) -> str:
    if isinstance(payload, Credit):
        covered = f"credit {payload.number} {payload.items} {payload.bytes}"
    else:
        covered = f"abort {payload.reason}"
    return hmac.digest(request_id.encode(errors="replace"), covered.encode(errors="replace"), "sha256").hex()
