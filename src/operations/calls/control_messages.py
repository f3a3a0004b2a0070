"""Control messages: aborts and credit, and on a shared bus the proof that they come from the caller.

On Redis every caller can also receive the control messages of other calls. There a control message identifies its call
by a hash of the request id, and contains a proof that its sender knows the id. Only the caller and the worker know the
id. A proof covers the whole message, and credit messages are numbered: a peer that receives another caller's message
can neither change nor repeat it.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from operations.calls.codec import Codec
from operations.calls.events import VERSION, AbortPayload, CallAborted, CallCredit, CreditPayload
from operations.wire import valid_text


def control_id(request_id: str) -> str:
    """Return the name of a call in control messages that other peers receive.

    The name hides the request id: a peer that knew the id could forge responses to the call.
    """
    return blake2b(request_id.encode(errors="replace"), digest_size=16).hexdigest()


def write_abort(request_id: str, codec: Codec, reason: str, *, with_proof: bool) -> bytes:
    """Encode an abort; `with_proof` adds a proof, for a transport where other peers also receive the message."""
    payload = AbortPayload(request_id, valid_text(reason))
    if with_proof:
        payload.proof = _prove(request_id, payload)
        payload.request_id = control_id(request_id)
    return codec.encode(CallAborted(VERSION, payload.request_id, "", payload))


def write_credit(request_id: str, codec: Codec, items: int, size: int, *, number: int | None) -> bytes:
    """Encode a credit message; a `number` adds a proof, for a transport where other peers also receive the message."""
    payload = CreditPayload(request_id, items, size)
    if number is not None:
        payload.number = number
        payload.proof = _prove(request_id, payload)
        payload.request_id = control_id(request_id)
    return codec.encode(CallCredit(VERSION, payload.request_id, "", payload))


def has_valid_proof(request_id: str, payload: AbortPayload | CreditPayload) -> bool:
    """Return whether the sender of a control message knows the id of the request."""
    return hmac.compare_digest(_prove(request_id, payload).encode(), payload.proof.encode(errors="replace"))


def _prove(request_id: str, payload: AbortPayload | CreditPayload) -> str:
    if isinstance(payload, CreditPayload):
        covered = f"credit {payload.number} {payload.items} {payload.bytes}"
    else:
        covered = f"abort {payload.reason}"
    return hmac.digest(request_id.encode(errors="replace"), covered.encode(errors="replace"), "sha256").hex()
