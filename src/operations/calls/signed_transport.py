"""SignedTransport: proves who calls, on a bus that many can write to, by a token and a signature of every request.

A token (a JWT, say) names the caller. The signature proves that the caller made the request, for the address that it
was sent to; see `signing_secrets`. A worker's nested calls are signed for the caller of the request they belong to.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from operations.calls.endpoint import SignsNestedCalls
from operations.calls.events import CallRequested
from operations.calls.replays import (
    LONGEST_DEADLINE,
    RecordedDelivery,
    ReplayError,
    Replays,
    problem_with,
    remembered_until,
)
from operations.calls.signature_format import (
    BY_GRANT,
    BY_SESSION,
    Root,
    SignedRequest,
    is_signed,
    join,
    root_id,
    split,
)
from operations.calls.signing_secrets import Session, SigningSecret, grant_key, is_proven, prove
from operations.context import Grant, Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Authenticator, Principal
from operations.pubsub import (
    Arrival,
    Capabilities,
    Delivery,
    InProcess,
    Receive,
    Remembers,
    Stop,
    Take,
    Transport,
    TransportWrapper,
    Undelivered,
)
from operations.pubsub.protocols import Part
from operations.recent import Recent

_LONGEST_TOKEN = 8_000
_RESERVED = 8_192
"""What is left of the largest message for a token and a signature."""
_MOST_TOKENS = 10_000


class Received(msgspec.Struct, frozen=True):
    """What is known of the signed request that is being received."""

    signed: SignedRequest | None
    signer: Principal | CallError
    """Whose token it has, or why it is refused."""
    delivery: RecordedDelivery | None
    """For a stored request, what to settle it with."""


class SignedTransport(TransportWrapper):
    """A transport whose requests are signed, and whose signatures a CallHandler checks with `identify`.

    A caller gives its `session` (or a function that gives the present one). A worker gives the `secret` and the
    `tokens` it accepts, and passes `identify=transport.identify` to its CallHandler. Its nested calls are its caller's;
    those of an unsigned caller are not signed. With a `session` of its own it also calls as itself, outside of any
    request, with `as_worker=True`. With `required`, requests that nobody signed are refused.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        session: Session | Callable[[], Session] | None = None,
        secret: SigningSecret | None = None,
        tokens: Authenticator | None = None,
        required: bool = False,
    ) -> None:
        if session is None and secret is None:
            raise ValueError("a caller signs with a session, a worker checks with a secret: give one of them")
        super().__init__(transport)
        self.refusals: Counter[str] = Counter()
        """Requests that were refused, by the reason: unsigned, forged, invalid, expired or replayed."""
        self._session = session
        self._secret = secret
        self._tokens = tokens
        self._required = required
        self._known: Recent[str, tuple[bytes, Principal]] = Recent(_MOST_TOKENS)
        self._keys: Recent[bytes, bytes] = Recent(_MOST_TOKENS)
        """The keys that nested calls are signed with, by token."""
        self._replays = Replays()
        self._remembers = transport.optional(Remembers)
        self._received: Received | None = None
        self._capabilities: tuple[Capabilities, Capabilities] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the inner transport promises, with room for the signature; a connection may have changed it."""
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
        """The inner transport's parts, but for calls by reference, which would bypass the signatures."""
        if kind is SignsNestedCalls and isinstance(self, kind):
            return self
        return None if kind is InProcess else super().optional(kind)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send; a request is signed."""
        if address.startswith(("work.", "direct.")):
            message = self._sign(address, message)
        self.inner.send(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive; who signed a request is known while it is being received."""
        if not address.startswith("work."):
            return self.inner.listen(address, receive, group=group)

        def check(message: bytes, arrival: Arrival) -> None:
            self._receive(message, arrival, None, lambda request: receive(request, arrival))

        return self.inner.listen(address, check, group=group)

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a request, signed."""
        signed = self._sign(address, message)
        super().store(address, signed, key=key, stored=stored, undelivered=undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored requests; a token must still be valid when its request is run."""

        def check(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            recorded = RecordedDelivery(delivery, self._remembers)
            self._receive(message, arrival, recorded, lambda request: take(request, recorded, arrival))

        return super().take(address, check, limit=limit)

    def rotate(self, secret: SigningSecret) -> None:
        """Sign and check with another secret from now on; requests by the old one hold while it is still accepted."""
        if self._secret is None:
            raise ValueError("a caller has no secret to rotate: it is given another session")
        self._secret = secret
        self._known = Recent(_MOST_TOKENS)
        self._keys = Recent(_MOST_TOKENS)

    def identify(self, event: CallRequested) -> Identity | None:
        """Whom the request that is being received is from; raises `ACCESS_DENIED` where its signature does not hold."""
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
        problem = problem_with(event, stored=stored)
        if problem:
            raise self._refuse("replayed", problem)
        if not stored and not self._replays.is_new(event):
            raise ReplayError(ErrorCode.ACCESS_DENIED, self._refuse("replayed", "the request was here already").message)
        return signer.identity

    def root_of(self, event: CallRequested) -> Root | None:
        """What calls nested in the request that is being received are signed with; None where nobody signed it."""
        received = self._received
        if received is None or received.signed is None or isinstance(received.signer, CallError):
            return None
        payload = event.payload
        if received.signed.root is not None:
            return received.signed.root
        deadline = payload.deadline if received.delivery is None else payload.not_after
        if deadline is None:
            deadline = (payload.sent_at or 0) + int(LONGEST_DEADLINE * 1000)
        return Root(received.signed.token, root_id(event.id), deadline)

    def record(self, event: CallRequested) -> Coroutine[Any, Any, bool] | None:
        """Note the request that is being received in the record that all workers share; False where it was there.

        None where there is no such record, or where the server delivers a stored request once more.
        """
        received, remembers = self._received, self._remembers
        if received is None or received.signed is None or remembers is None:
            return None
        until, name = remembered_until(event), f"{event.id} {event.payload.attempt}"
        delivery = received.delivery
        if delivery is not None:
            if delivery.is_redelivered:
                return None
            until, name = (event.payload.not_after or 0) / 1000, f"{event.id} stored"
        # With the token: nobody else can note the request before it comes.
        key = root_id(f"{name} {received.signed.token!r}").hex()
        if delivery is not None:
            delivery.key = key
        return self._note(remembers, key, max(1.0, until - time.time()))

    def for_grant(self, grant: Grant | None, *, as_worker: bool) -> Transport:
        """The transport for a request: signed for the grant's caller, or by this process's own session."""
        if grant is not None:
            return _NestedCalls(self, grant.signature) if isinstance(grant.signature, Root) else self.inner
        if as_worker and self._session is None:
            message = "as_worker=True needs a session of the worker's own: SignedTransport(…, secret=…, session=…)"
            raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no"})
        if self._session is not None and self._secret is not None and not as_worker:
            message = "a worker's own session signs only calls with as_worker=True, outside of any request"
            raise CallError(ErrorCode.ACCESS_DENIED, message, {"reason": "AS_WORKER", "executed": "no"})
        return self

    def sign_nested(self, root: Root, address: str, message: bytes) -> bytes:
        """A request that is made for the caller of another one."""
        key = self._keys.get(root.token)
        if key is None:
            assert self._secret is not None
            key = self._keys[root.token] = next(self._secret.session_keys(root.token.decode()))
        packed = root.packed
        proof = prove(grant_key(key, packed), _signed_address(address), message)
        return join(BY_GRANT, root.token, packed, proof, message)

    def _sign(self, address: str, message: bytes) -> bytes:
        session = self._session() if callable(self._session) else self._session
        if session is None:
            return message
        token = session.token.encode()
        if len(token) > _LONGEST_TOKEN:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the token has {len(token):,} bytes: that is no token")
        return join(BY_SESSION, token, b"", prove(session.key, _signed_address(address), message), message)

    async def _note(self, remembers: Remembers, key: str, seconds: float) -> bool:
        is_new = await remembers.remember(key, seconds)
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

    def _open(self, message: bytes, arrival: Arrival, delivery: RecordedDelivery | None) -> tuple[bytes, Received]:
        """The request, and who signed it or why nobody did."""
        signed = split(message)
        if signed is None:
            return b"", Received(None, self._refuse("forged", "the signature is cut short"), delivery)
        signer: Principal | CallError
        try:
            signer = self._verify(signed, _signed_address(arrival.address))
        except CallError as error:
            signer = error
        except UnicodeDecodeError:
            signer = self._refuse("forged", "the token is no text")
        return signed.request, Received(signed, signer, delivery)

    def _verify(self, signed: SignedRequest, address: bytes) -> Principal:
        if self._secret is None:
            raise self._refuse("forged", "this worker has no secret to check signatures with")
        if signed.kind not in (BY_SESSION, BY_GRANT):
            raise self._refuse("forged", "a signature of this kind is not accepted")
        token = signed.token.decode()
        # The proof first: checking a token costs a hundred times as much.
        known, principal = self._known.get(token) or (b"", None)
        if principal is None or not _is_signed_with(known, signed, address):
            key = self._find_key(self._secret, token, signed, address)
            principal = principal or self._admit(token)
            self._known[token] = key, principal
        if principal.expires_at is not None and principal.expires_at < time.time():
            raise self._refuse("expired", "the token has expired")
        return principal

    def _find_key(self, secret: SigningSecret, token: str, signed: SignedRequest, address: bytes) -> bytes:
        """The session's key that a request was signed with, of those that are accepted."""
        for key in secret.session_keys(token):
            if _is_signed_with(key, signed, address):
                return key
        raise self._refuse("forged", "the signature does not fit the request")

    def _admit(self, token: str) -> Principal:
        if self._tokens is None:
            raise self._refuse("invalid", "this worker accepts no tokens")
        try:
            return self._tokens.authenticate(token)
        except CallError as error:
            raise self._refuse("invalid", error.message) from None

    def _apply_root(self, event: CallRequested, root: Root, *, stored: bool) -> None:
        """Refuse a nested call whose root's deadline has passed; one that is stored was sent before that."""
        payload = event.payload
        made_at = (payload.sent_at or 0) if stored else int(time.time() * 1000)
        if made_at > root.deadline:
            raise self._refuse("expired", "the deadline of the request that this call is made for has passed")
        if payload.deadline is not None and payload.deadline > root.deadline:
            payload.deadline = root.deadline

    def _refuse(self, reason: str, message: str) -> CallError:
        self.refusals[reason] += 1
        details = {"reason": reason.upper(), "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"refused: {message}", details)


class _NestedCalls(TransportWrapper):
    """Sends the calls that are made for one root."""

    def __init__(self, signed: SignedTransport, root: Root) -> None:
        super().__init__(signed.inner)
        self._signed = signed
        self._root = root

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a request, signed for the root's caller."""
        self.inner.send(address, self._signed.sign_nested(self._root, address, message), undelivered)

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a request, signed for the root's caller."""
        signed = self._signed.sign_nested(self._root, address, message)
        super().store(address, signed, key=key, stored=stored, undelivered=undelivered)


def _is_signed_with(key: bytes, signed: SignedRequest, address: bytes) -> bool:
    if signed.root is not None:
        key = grant_key(key, signed.root.packed)
    return is_proven(signed.proof, key, address, signed.request)


@functools.lru_cache(maxsize=4096)
def _signed_address(address: str) -> bytes:
    """What a proof covers of an address: what is sent to one worker arrives as if sent to all of them."""
    if address.startswith("direct."):
        address = f"work.{address.partition('/')[2]}"
    return address.encode() + b"\0"
