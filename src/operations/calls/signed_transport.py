"""SignedTransport: proves who calls, on a bus that many can write to, by a token and a signature of every request.

A token (a JWT, say) names the caller. The signature proves that the caller made the request; see `signing_secrets`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from operations.calls.events import CallRequested
from operations.calls.signature_format import is_signed, join, split
from operations.calls.signing_secrets import Session, SigningSecret, is_proven, prove
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Authenticator, Principal
from operations.pubsub import (
    Arrival,
    Capabilities,
    Delivery,
    InProcess,
    Receive,
    Stop,
    Take,
    Transport,
    TransportWrapper,
    Undelivered,
)
from operations.pubsub.protocols import Part
from operations.recent import Recent

_BY_TOKEN = 1
_BY_WORKER = 2
_LONGEST_TOKEN = 8_000
_RESERVED = 8_192
"""What is left of the largest message for a token and a signature."""
_LONGEST_DEADLINE = 3_600.0
_FRESH_SECONDS = 60.0
_MOST_TOKENS = 10_000


class SignedTransport(TransportWrapper):
    """A transport whose requests are signed, and whose signatures a CallHandler checks with `identify`.

    A caller gives its `session` (or a function that gives the present one). A worker gives the `secret` and the
    `tokens` it accepts, and passes `identify=transport.identify` to its CallHandler; its nested calls are signed with
    the secret, on behalf of whoever called it. With `required`, requests that nobody signed are refused.
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
        self._replays = Replays()
        self._vouched: Principal | CallError | bool | None = None
        self._stored = False
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
                claims_identity=self._secret is not None,
                max_payload=None if limit is None else max(1, limit - _RESERVED),
            )
            self._capabilities = inner, own
        return self._capabilities[1]

    def optional(self, kind: type[Part]) -> Part | None:
        """The inner transport's parts, but for calls by reference: they would bypass the signatures."""
        return None if kind is InProcess else super().optional(kind)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send; a request is signed."""
        self.inner.send(
            address, self._sign(message) if address.startswith(("work.", "direct.")) else message, undelivered
        )

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive; who signed a request is known while it is being received."""
        if not address.startswith("work."):
            return self.inner.listen(address, receive, group=group)

        def check(message: bytes, arrival: Arrival) -> None:
            self._receive(message, lambda request: receive(request, arrival))

        return self.inner.listen(address, check, group=group)

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a request, signed."""
        super().store(address, self._sign(message), key=key, stored=stored, undelivered=undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored requests; a token must still be valid when its request is run."""

        def check(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            self._stored = True
            try:
                self._receive(message, lambda request: take(request, delivery, arrival))
            finally:
                self._stored = False

        return super().take(address, check, limit=limit)

    def rotate(self, secret: SigningSecret) -> None:
        """Sign and check with another secret from now on; requests by the old one hold while it is still accepted."""
        if self._secret is None:
            raise ValueError("a caller has no secret to rotate: it is given another session")
        self._secret = secret
        self._known = Recent(_MOST_TOKENS)

    def identify(self, event: CallRequested) -> Identity | None:
        """Whom the request that is being received is from; raises `ACCESS_DENIED` where its signature does not hold."""
        vouched = self._vouched
        if isinstance(vouched, CallError):
            raise vouched
        if vouched is None:
            if self._required:
                raise self._refuse("unsigned", "the request is not signed")
            return None
        if not self._stored:
            problem = self._replays.check(event)
            if problem:
                raise self._refuse("replayed", problem)
        return vouched.identity if isinstance(vouched, Principal) else event.payload.identity

    def _sign(self, message: bytes) -> bytes:
        if self._secret is not None:
            return join(_BY_WORKER, b"", prove(self._secret.worker_keys[0], message), message)
        session = self._session() if callable(self._session) else self._session
        assert session is not None
        token = session.token.encode()
        if len(token) > _LONGEST_TOKEN:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the token has {len(token):,} bytes: that is no token")
        return join(_BY_TOKEN, token, prove(session.key, message), message)

    def _receive(self, message: bytes, receive: Callable[[bytes], None]) -> None:
        if not is_signed(message):
            receive(message)
            return
        outer = self._vouched
        try:
            request, self._vouched = self._open(message)
            receive(request)
        finally:
            self._vouched = outer

    def _open(self, message: bytes) -> tuple[bytes, Principal | CallError | bool]:
        """The request, and who signed it: a principal, any worker (True), or the error that says why nobody did."""
        signed = split(message)
        if signed is None:
            return b"", self._refuse("forged", "the signature is cut short")
        try:
            return signed.request, self._verify(signed.kind, signed.token.decode(), signed.proof, signed.request)
        except CallError as error:
            return signed.request, error
        except UnicodeDecodeError:
            return signed.request, self._refuse("forged", "the token is no text")

    def _verify(self, kind: int, token: str, proof: bytes, request: bytes) -> Principal | bool:
        secret = self._secret
        if secret is None:
            raise self._refuse("forged", "this worker has no secret to check signatures with")
        if kind == _BY_WORKER:
            self._find_key(secret.worker_keys, proof, request)
            return True
        # The proof first: checking a token costs a hundred times as much.
        known, principal = self._known.get(token) or (b"", None)
        if principal is None or not is_proven(proof, known, request):
            key = self._find_key(secret.session_keys(token), proof, request)
            principal = principal or self._admit(token)
            self._known[token] = key, principal
        if principal.expires_at is not None and principal.expires_at < time.time():
            raise self._refuse("expired", "the token has expired")
        return principal

    def _find_key(self, keys: Iterable[bytes], proof: bytes, request: bytes) -> bytes:
        """The key that a request was signed with, of those that are accepted."""
        for key in keys:
            if is_proven(proof, key, request):
                return key
        raise self._refuse("forged", "the signature does not fit the request")

    def _admit(self, token: str) -> Principal:
        if self._tokens is None:
            raise self._refuse("invalid", "this worker accepts no tokens")
        try:
            return self._tokens.authenticate(token)
        except CallError as error:
            raise self._refuse("invalid", error.message) from None

    def _refuse(self, reason: str, message: str) -> CallError:
        self.refusals[reason] += 1
        details = {"reason": reason.upper(), "executed": "no"}
        return CallError(ErrorCode.ACCESS_DENIED, f"refused: {message}", details)


class Replays:
    """Which signed requests were here: each is remembered until its deadline, after which it would not run anyway."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, int]] = {}
        self._swept = 0

    def check(self, event: CallRequested) -> str:
        """Why a request is refused; nothing where it is new, or sent again with a higher number."""
        payload, now = event.payload, time.time()
        if payload.deadline is not None:
            until = payload.deadline / 1000
            if until - now > _LONGEST_DEADLINE:
                return "the deadline is too far away to remember the request for so long"
        elif payload.sent_at is None or abs(now - payload.sent_at / 1000) > _FRESH_SECONDS:
            return "the request has no deadline and was not sent just now"
        else:
            until = payload.sent_at / 1000 + 2 * _FRESH_SECONDS
        self._sweep(int(now))
        seen = self._seen.setdefault(int(until), {})
        if seen.get(event.id, -1) >= payload.attempt:
            return "the request was here already"
        seen[event.id] = payload.attempt
        return ""

    def _sweep(self, now: int) -> None:
        if now != self._swept:
            self._swept = now
            for second in [second for second in self._seen if second < now - 1]:
                del self._seen[second]
