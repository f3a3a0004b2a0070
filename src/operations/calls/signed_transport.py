"""SignedTransport: authenticates callers on a shared bus, by a token and a signature on every request.

A token, such as a JWT, names the caller. The signature proves that the caller made the request for the address that it
was sent to; see `signing_secrets`. A worker's nested calls are signed for the caller of the request they belong to.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import msgspec

from operations.calls.codec import UNREADABLE, codec_of
from operations.calls.events import CallRequested
from operations.calls.replay_protection import (
    LONGEST_DEADLINE,
    SKEW_SECONDS,
    STORED_SECONDS,
    RecordedDelivery,
    ReplayError,
    SeenRequests,
    kept_until,
    replay_problem,
)
from operations.calls.requests import SignsNestedCalls
from operations.calls.signature_format import (
    BY_GRANT,
    BY_SESSION,
    RootRequest,
    SignedRequest,
    is_signed,
    join,
    root_id,
    split,
)
from operations.calls.signing_secrets import SigningSecret, SigningSession, grant_key, is_signed_with, sign
from operations.context import Grant, Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Authenticator, Principal
from operations.pubsub import (
    Arrival,
    Capabilities,
    Delivery,
    InProcess,
    Receive,
    Record,
    Stop,
    StoresKeys,
    Take,
    Transport,
    TransportWrapper,
    Undelivered,
)
from operations.pubsub.protocols import Part
from operations.recent import Recent
from operations.telemetry.metrics import Measure

_LONGEST_TOKEN = 8_000
_RESERVED = 8_192
"""Number of bytes of the largest message that are reserved for a token and a signature."""
_MOST_TOKENS = 10_000


class ReceivedRequest(msgspec.Struct, frozen=True):
    """The signed request that is being received."""

    signed: SignedRequest | None
    signer: Principal | CallError
    """The owner of the request's token, or the error with which the request is refused."""
    delivery: RecordedDelivery | None
    """The delivery of a stored request."""


class _SigningTransport(TransportWrapper, ABC):
    """A transport that signs the requests that it sends and stores."""

    @abstractmethod
    def _sign(self, address: str, message: bytes) -> bytes:
        """Return a request with its signature, or unchanged if there is no session to sign with."""

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a message; sign it if it is a request."""
        if address.startswith(("work.", "direct.")):
            message = self._sign(address, message)
        self.inner.send(address, message, undelivered)

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        """Sign a request and store it."""
        signed = self._sign(address, message)
        super().store(address, signed, key=key, stored=stored, undelivered=undelivered, record=record)


class SignedTransport(_SigningTransport):
    """A transport that signs requests, and verifies signatures for a CallHandler with `identify`.

    A caller passes its `session`, or a function that returns the current session. A worker passes the `secret` and the
    `tokens` that it accepts, and `identify=transport.identify` to its CallHandler. A worker's nested calls are signed
    for the caller of the request that they are nested in. Calls nested in an unsigned request are unsigned too. A
    worker with its own `session` can also call as itself, with `as_worker=True` outside any request. With `required`,
    unsigned requests are refused.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        session: SigningSession | Callable[[], SigningSession] | None = None,
        secret: SigningSecret | None = None,
        tokens: Authenticator | None = None,
        required: bool = False,
    ) -> None:
        if session is None and secret is None:
            raise ValueError("SignedTransport needs session= (a caller) or secret= (a worker)")
        super().__init__(transport)
        self.refusals: Counter[str] = Counter()
        """Number of refused requests by reason: unsigned, forged, invalid, expired or replayed."""
        self._session = session
        self._secret = secret
        self._tokens = tokens
        self._required = required
        self._known: Recent[str, tuple[bytes, Principal]] = Recent(_MOST_TOKENS)
        self._keys: Recent[bytes, bytes] = Recent(_MOST_TOKENS)
        """The keys that sign nested calls, by token."""
        self._seen = SeenRequests()
        self._stored_keys = transport.optional(StoresKeys)
        self._received: ReceivedRequest | None = None
        self._capabilities: tuple[Capabilities, Capabilities] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The present capabilities of the inner transport, with two differences.

        No identity is authenticated or claimed: only signatures count. `max_payload` leaves space for the signature.
        """
        inner = self.inner.capabilities
        if self._capabilities is None or self._capabilities[0] is not inner:
            limit = inner.max_payload
            own = msgspec.structs.replace(
                inner,
                identity="none",
                claims_identity=False,
                max_payload=None if limit is None else max(1, limit - _RESERVED),
            )
            self._capabilities = inner, own
        return self._capabilities[1]

    def optional(self, kind: type[Part]) -> Part | None:
        """Return an optional part of this transport or of the inner one, or None.

        The part `InProcess` is never returned, because its calls are not signed.
        """
        if kind is SignsNestedCalls and isinstance(self, kind):
            return self
        return None if kind is InProcess else super().optional(kind)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Listen at an address; `receive` gets requests without signatures, and `identify` refuses invalid requests."""
        if not address.startswith("work."):
            return self.inner.listen(address, receive, group=group)

        def check(message: bytes, arrival: Arrival) -> None:
            self._receive(message, arrival, None, lambda request: receive(request, arrival))

        return self.inner.listen(address, check, group=group)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored requests; a token must still be valid when its request runs."""

        def check(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            recorded = RecordedDelivery(delivery, self._stored_keys)
            taken = cast("Delivery", recorded)
            self._receive(message, arrival, recorded, lambda request: take(request, taken, arrival))

        return super().take(address, check, limit=limit)

    def rotate(self, secret: SigningSecret) -> None:
        """Replace the secret; requests signed with the old secret stay valid if `secret` accepts the old one."""
        if self._secret is None:
            raise ValueError("a caller has no secret to rotate: pass a function as session= to replace its session")
        self._secret = secret
        self._known = Recent(_MOST_TOKENS)
        self._keys = Recent(_MOST_TOKENS)

    def identify(self, event: CallRequested) -> Identity | None:
        """Return the caller of the request that is being received; None if the request is not signed.

        Raise a CallError if the request must not run, for example because its signature is invalid, or because it is
        not signed although signatures are required.
        """
        received = self._received
        if received is None:
            if self._required:
                raise self._refuse("unsigned", "the request is not signed")
            return None
        signer, stored = received.signer, received.delivery is not None
        if isinstance(signer, CallError):
            raise signer
        root = received.signed.root if received.signed is not None else None
        if root is not None:
            self._apply_root(event, root, stored=stored)
        problem = replay_problem(event, stored=stored)
        if problem:
            raise self._refuse("replayed", problem)
        if not stored and not self._seen.is_new(event, signer.identity):
            error = self._refuse("replayed", "the request was already received")
            raise ReplayError(ErrorCode.ACCESS_DENIED, error.message)
        return signer.identity

    def root_of(self, event: CallRequested) -> RootRequest | None:
        """Return the root for calls nested in the request that is being received; None if the request is not signed."""
        received = self._received
        if received is None or received.signed is None or isinstance(received.signer, CallError):
            return None
        payload = event.payload
        if received.signed.root is not None:
            return received.signed.root
        deadline = payload.deadline if received.delivery is None else payload.not_after
        if deadline is None:
            deadline = (payload.sent_at or 0) + int(LONGEST_DEADLINE * 1000)
        return RootRequest(received.signed.token, root_id(event.id), deadline)

    def record(self, event: CallRequested) -> Coroutine[Any, Any, bool] | None:
        """Return a coroutine that adds the current request to the shared record of signed requests.

        The coroutine returns False if the record already has the request. Return None if the request is not signed, if
        the transport has no such record, or if a worker stored the request again.
        """
        received, keys = self._received, self._stored_keys
        if received is None or received.signed is None or keys is None:
            return None
        delivery, token = received.delivery, received.signed.token
        if delivery is None:
            key = replay_key(f"{event.id} {event.payload.attempt}", token)
            return self._note(keys, key, max(1.0, kept_until(event) - time.time()))
        if not delivery.entry:
            return None
        # Always the same time, so that a copy finds the key: on NATS, a shorter time would select another stream.
        return self._note(keys, delivery.key, STORED_SECONDS + SKEW_SECONDS, delivery.entry)

    def measures(self) -> Iterator[Measure]:
        """Return how many requests were refused, by reason."""
        for reason, count in self.refusals.items():
            yield Measure("operations_signature_refusals_total", count, {"reason": reason})

    def for_grant(self, grant: Grant | None, *, as_worker: bool) -> Transport:
        """Return the transport for calls with the grant of a request; it signs them for the caller of the request.

        Calls nested in an unsigned request are not signed. Without a grant, the transport signs with this process's own
        session, if there is one. Raise a CallError if `as_worker` is True without a session, or False for a worker with
        a session.
        """
        if grant is not None:
            return (
                _NestedCallTransport(self, grant.signature) if isinstance(grant.signature, RootRequest) else self.inner
            )
        if as_worker and self._session is None:
            message = "as_worker=True needs the worker's own session: SignedTransport(…, secret=…, session=…)"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        if self._session is not None and self._secret is not None and not as_worker:
            message = "outside any request, a worker with its own session can call only with as_worker=True"
            raise CallError(ErrorCode.ACCESS_DENIED, message, {"reason": "AS_WORKER", "executed": "no"})
        return self

    def sign_for(self, grant: Grant, address: str, message: bytes) -> bytes:
        """Return a request, signed for the caller of `grant`; raise a CallError if `grant` is for an unsigned one."""
        if not isinstance(grant.signature, RootRequest):
            problem = "the request that this call is nested in is not signed"
            raise CallError(ErrorCode.ACCESS_DENIED, problem, {"reason": "UNSIGNED", "executed": "no"})
        return self.sign_nested(grant.signature, address, message)

    def sign_nested(self, root: RootRequest, address: str, message: bytes) -> bytes:
        """Sign a nested call for the caller of its root."""
        key = self._keys.get(root.token)
        if key is None:
            assert self._secret is not None
            key = self._keys[root.token] = next(self._secret.session_keys(root.token.decode()))
        packed = root.packed
        signature = sign(grant_key(key, packed), _signed_address(address, self.inner.capabilities.bus), message)
        return join(BY_GRANT, root.token, packed, signature, message)

    def _sign(self, address: str, message: bytes) -> bytes:
        session = self._session() if callable(self._session) else self._session
        if session is None:
            return message
        token = session.token.encode()
        if len(token) > _LONGEST_TOKEN:
            problem = f"the token has {len(token):,} bytes: at most {_LONGEST_TOKEN:,} are allowed"
            raise CallError(ErrorCode.VALIDATION_ERROR, problem)
        signature = sign(session.key, _signed_address(address, self.inner.capabilities.bus), message)
        return join(BY_SESSION, token, b"", signature, message)

    async def _note(self, keys: StoresKeys, key: str, seconds: float, entry: str = "") -> bool:
        is_new = await keys.store_key(key, seconds, entry)
        if not is_new:
            self.refusals["replayed"] += 1
        return is_new

    def _receive(
        self, message: bytes, arrival: Arrival, delivery: RecordedDelivery | None, receive: Callable[[bytes], None]
    ) -> None:
        outer = self._received
        try:
            if is_signed(message):
                message, self._received = self._open(message, arrival, delivery)
            else:
                self._received = None
            receive(message)
        finally:
            self._received = outer

    def _open(
        self, message: bytes, arrival: Arrival, delivery: RecordedDelivery | None
    ) -> tuple[bytes, ReceivedRequest]:
        """Return the request without its signature, and its signer or the error with which it is refused."""
        signed = split(message)
        if signed is None:
            return b"", ReceivedRequest(None, self._refuse("forged", "the signature is truncated"), delivery)
        signer: Principal | CallError
        try:
            signer = self._verify(signed, _signed_address(arrival.address, self.inner.capabilities.bus))
        except CallError as error:
            signer = error
        except UnicodeDecodeError:
            signer = self._refuse("forged", "the token is not UTF-8")
        if delivery is not None and isinstance(signer, Principal):
            delivery.key = _read_key(signed)
        return signed.request, ReceivedRequest(signed, signer, delivery)

    def _verify(self, signed: SignedRequest, address: bytes) -> Principal:
        if self._secret is None:
            raise self._refuse("forged", "this worker has no secret to verify signatures with")
        if signed.kind not in (BY_SESSION, BY_GRANT):
            raise self._refuse("forged", "unknown kind of signature")
        token = signed.token.decode()
        # Verify the signature first: checking a token costs a hundred times as much.
        known, principal = self._known.get(token) or (b"", None)
        if principal is None or not _is_signed_with(known, signed, address):
            key = self._find_key(self._secret, token, signed, address)
            principal = principal or self._admit(token)
            self._known[token] = key, principal
        if principal.expires_at is not None and principal.expires_at < time.time():
            raise self._refuse("expired", "the token has expired")
        return principal

    def _find_key(self, secret: SigningSecret, token: str, signed: SignedRequest, address: bytes) -> bytes:
        """Return the accepted session key that a request was signed with; raise `ACCESS_DENIED` if there is none."""
        for key in secret.session_keys(token):
            if _is_signed_with(key, signed, address):
                return key
        raise self._refuse("forged", "the signature does not match the request")

    def _admit(self, token: str) -> Principal:
        if self._tokens is None:
            raise self._refuse("invalid", "this worker accepts no tokens")
        try:
            return self._tokens.authenticate(token)
        except CallError as error:
            raise self._refuse("invalid", error.message) from None

    def _apply_root(self, event: CallRequested, root: RootRequest, *, stored: bool) -> None:
        """Apply the deadline of the root to a nested call; a stored call must have been sent before that deadline.

        The time of sending is derived from the expiry of the stored call: the signer could state any time of sending.
        """
        payload = event.payload
        made_at = (payload.not_after or 0) - int(STORED_SECONDS * 1000) if stored else int(time.time() * 1000)
        if made_at > root.deadline:
            raise self._refuse("expired", "the deadline of the request that this call is nested in has passed")
        if payload.deadline is not None and payload.deadline > root.deadline:
            payload.deadline = root.deadline

    def _refuse(self, reason: str, message: str) -> CallError:
        self.refusals[reason] += 1
        details = {"reason": reason.upper(), "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"refused: {message}", details)


class _NestedCallTransport(_SigningTransport):
    """A transport that signs nested calls for the caller of one root."""

    def __init__(self, signed: SignedTransport, root: RootRequest) -> None:
        super().__init__(signed.inner)
        self._signed = signed
        self._root = root

    def _sign(self, address: str, message: bytes) -> bytes:
        return self._signed.sign_nested(self._root, address, message)


def stored_name(request_id: str) -> str:
    """Return the name of a stored request in the shared record of signed requests."""
    return f"{request_id} stored"


def _read_key(signed: SignedRequest) -> str:
    """Return the key of a stored request in the record of signed requests; empty if the request cannot be decoded."""
    try:
        return replay_key(stored_name(codec_of(signed.request).decode_outline(signed.request).id), signed.token)
    except UNREADABLE:
        return ""


def replay_key(name: str, token: bytes) -> str:
    """Return the key of a request in the shared record of signed requests.

    The key depends on the token, so that no other peer can add the key before the request arrives.
    """
    return root_id(f"{name} {token!r}").hex()


def _is_signed_with(key: bytes, signed: SignedRequest, address: bytes) -> bool:
    if signed.root is not None:
        key = grant_key(key, signed.root.packed)
    return is_signed_with(signed.signature, key, address, signed.request)


@functools.lru_cache(maxsize=4096)
def _signed_address(address: str, bus: str) -> bytes:
    """Return the bus and address that a signature covers.

    A request to a single worker is signed for the address of all workers, so that another worker also accepts it.
    """
    if address.startswith("direct."):
        address = f"work.{address.partition('/')[2]}"
    return f"{bus}\0{address}\0".encode()
