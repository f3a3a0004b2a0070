"""Signed identities: who calls, on a bus that many can write to, proven by a token and a seal over every request.

A token (a JWT, say) names the caller. It travels with every request and is no secret: what proves that a request is the
caller's own is a seal, a keyed hash of the whole request, and its key never travels. Workers derive that key from the
token and a secret that only they and the issuer of tokens have; the issuer gives it to the caller with the token.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from operations.calls.authentication import Authenticator, Principal
from operations.calls.events import CallRequested
from operations.calls.sealing import SEAL_BYTES, is_sealed, join, split
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.pubsub import Capabilities, Delivery, Receive, Stop, Take, Transport, Undelivered
from operations.recent import Recent

_BY_TOKEN = 1
_BY_WORKER = 2
_LEAST_SECRET = 32
_LONGEST_TOKEN = 8_000
_RESERVED = 8_192
"""What is left of the largest message for a token and a seal."""
_LONGEST_DEADLINE = 3_600.0
_FRESH_SECONDS = 60.0
_MOST_TOKENS = 10_000


class Session(msgspec.Struct, frozen=True):
    """What a caller signs with: its token, which everybody may see, and the key that nobody else may."""

    token: str
    key: bytes

    def __repr__(self) -> str:
        return "<Session>"


class SigningSecret:
    """The secret of workers and issuers: whoever has it may say on whose behalf a request is made.

    While one secret takes the place of another, `accepts` names those that are believed beside it: signatures and
    sessions are made with the first alone, and checked with all of them.
    """

    def __init__(self, secret: bytes, *, accepts: Iterable[bytes] = ()) -> None:
        self._secrets = tuple(_stretch(each) for each in (secret, *accepts))
        self.worker_keys = tuple(_derive(each, b"", b"ops-worker") for each in self._secrets)
        """What workers sign with, the first, and what else they believe."""

    def session(self, token: str) -> Session:
        """What to give the caller that a token was issued to, on a way that nobody else reads."""
        return Session(token, next(self.session_keys(token)))

    def session_keys(self, token: str) -> Iterator[bytes]:
        """The keys that a request with this token may be signed with."""
        return (_derive(each, token.encode(), b"ops-session") for each in self._secrets)


def _stretch(secret: bytes) -> bytes:
    if len(secret) < _LEAST_SECRET:
        raise ValueError(f"the secret has {len(secret)} bytes: at least {_LEAST_SECRET} random ones are needed")
    return hashlib.blake2b(secret, person=b"operations").digest()


def _derive(secret: bytes, data: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret, person=purpose, digest_size=32).digest()


def seal(key: bytes, message: bytes) -> bytes:
    """What only somebody with the key can make of a request."""
    return hashlib.blake2b(message, key=key, person=b"ops-request", digest_size=SEAL_BYTES).digest()


def _fits(given: bytes, key: bytes, request: bytes) -> bool:
    return hmac.compare_digest(given, seal(key, request))


class SignedTransport:
    """A transport whose requests are signed, and whose signatures a CallHandler checks with `identify`.

    A caller gives its `session` (or a function that gives the present one). A worker gives the `secret` and the
    `tokens` it accepts, and passes `identify=transport.identify` to its CallHandler; its nested calls are signed with
    the secret, on behalf of whoever called it. With `required`, requests that nobody signed are refused.
    """

    direct = False
    offer = reach = None
    """Nothing goes past the signatures, whatever the transport could do within one process."""

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
        self.peer = transport.peer
        self.refusals: Counter[str] = Counter()
        """Requests that were refused, by the reason: unsigned, forged, invalid, expired or replayed."""
        self._transport = transport
        self._session = session
        self._secret = secret
        self._tokens = tokens
        self._required = required
        self._known: Recent[str, tuple[bytes, Principal]] = Recent(_MOST_TOKENS)
        self._replays = Replays()
        self._vouched: Principal | CallError | bool | None = None
        self._stored = False
        limit = transport.capabilities.max_payload
        self.capabilities: Capabilities = msgspec.structs.replace(
            transport.capabilities,
            identity="none",
            claims_identity=secret is not None,
            max_payload=None if limit is None else max(1, limit - _RESERVED),
        )

    def __getattr__(self, name: str) -> Any:
        # What only some transports have: durable storage, the state of the connection.
        return getattr(self._transport, name)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send; a request is signed."""
        signed = self._sign(message) if address.startswith("work.") else message
        self._transport.send(address, signed, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive; who signed a request is known while it is being received."""
        if not address.startswith("work."):
            return self._transport.listen(address, receive, group=group)
        return self._transport.listen(address, lambda message: self._receive(message, receive), group=group)

    def store(self, address: str, message: bytes, **options: Any) -> None:
        """Store a request, signed."""
        self._transport.store(address, self._sign(message), **options)  # type: ignore[attr-defined]

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take stored requests; a token must still be valid when its request is run."""

        def check(message: bytes, delivery: Delivery) -> None:
            self._stored = True
            try:
                self._receive(message, lambda request: take(request, delivery))
            finally:
                self._stored = False

        stop: Stop = self._transport.take(address, check, limit=limit)  # type: ignore[attr-defined]
        return stop

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Be told when the transport is back, and when it is lost."""
        return self._transport.watch(up, down)

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

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
            return join(_BY_WORKER, b"", seal(self._secret.worker_keys[0], message), message)
        session = self._session() if callable(self._session) else self._session
        assert session is not None
        token = session.token.encode()
        if len(token) > _LONGEST_TOKEN:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"the token has {len(token):,} bytes: that is no token")
        return join(_BY_TOKEN, token, seal(session.key, message), message)

    def _receive(self, message: bytes, receive: Receive) -> None:
        if not is_sealed(message):
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
        sealed = split(message)
        if sealed is None:
            return b"", self._refuse("forged", "the signature is cut short")
        try:
            return sealed.request, self._verify(sealed.kind, sealed.token.decode(), sealed.seal, sealed.request)
        except CallError as error:
            return sealed.request, error
        except UnicodeDecodeError:
            return sealed.request, self._refuse("forged", "the token is no text")

    def _verify(self, kind: int, token: str, given: bytes, request: bytes) -> Principal | bool:
        secret = self._secret
        if secret is None:
            raise self._refuse("forged", "this worker has no secret to check signatures with")
        if kind == _BY_WORKER:
            self._find_key(secret.worker_keys, given, request)
            return True
        # The seal first: whoever cannot make one does not get a token looked at, which costs a hundred times as much.
        known, principal = self._known.get(token) or (b"", None)
        if principal is None or not _fits(given, known, request):
            key = self._find_key(secret.session_keys(token), given, request)
            principal = principal or self._admit(token)
            self._known[token] = key, principal
        if principal.expires_at is not None and principal.expires_at < time.time():
            raise self._refuse("expired", "the token has expired")
        return principal

    def _find_key(self, keys: Iterable[bytes], given: bytes, request: bytes) -> bytes:
        """The key that a request was sealed with, of those that are accepted."""
        for key in keys:
            if _fits(given, key, request):
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
