"""Authentication of peers by tokens: the Authenticator protocol, static tokens and JWTs."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.pubsub import require_extra


class Principal(msgspec.Struct, frozen=True):
    """An authenticated peer: its identity, the namespaces where it may register operations, and its expiry."""

    identity: Identity
    namespaces: Sequence[str] = ()
    """Namespaces where the peer may register operations, each with all namespaces below it; `*` stands for all."""
    expires_at: float | None = None
    """Time at which the token expires, in epoch seconds; None if it does not."""
    speaks_for_callers: bool = True
    """Whether nested calls that the peer makes while it runs a request have the identity of the request's caller.

    If not, these calls have the peer's own identity, limited to the rights that the peer shares with the caller.
    """
    audiences: Sequence[str] = ()
    """The audiences of the peer's token; empty if the token names none."""

    @property
    def has_rights(self) -> bool:
        """Whether the principal has any scope, resource or namespace."""
        return self.identity.has_rights or bool(self.namespaces)

    def identity_for(self, caller: Identity | None) -> Identity | None:
        """Return the identity of this peer's nested calls in a request of `caller`; None for an anonymous caller."""
        if caller is None or self.speaks_for_callers:
            return caller
        own = self.identity
        return Identity(
            own.id,
            [scope for scope in own.scopes if scope in caller.scopes],
            {
                resource: [action for action in actions if action in caller.resources[resource]]
                for resource, actions in own.resources.items()
                if resource in caller.resources
            },
            {**own.claims, "onBehalfOf": caller.id},
        )

    def may_register(self, namespace: str) -> bool:
        """Whether this peer may register operations in a namespace."""
        return any(
            allowed == "*" or namespace == allowed or namespace.startswith(f"{allowed}.") for allowed in self.namespaces
        )

    def may_register_within(self, namespace: str) -> bool:
        """Whether this peer may register operations in `namespace` or in any namespace below it.

        For the namespace `*`: whether the peer may register operations in any namespace at all.
        """
        if namespace == "*":
            return bool(self.namespaces)
        below = f"{namespace}."
        return self.may_register(namespace) or any(allowed.startswith(below) for allowed in self.namespaces)


class Authenticator(Protocol):
    """Verifies tokens."""

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal; raise `ACCESS_DENIED` for a missing, unknown or expired token."""


class AsyncAuthenticator(Protocol):
    """Verifies tokens asynchronously, for instance by a request to another server."""

    async def authenticate(self, token: str | None) -> Principal:
        """Return the principal; raise `ACCESS_DENIED` for a missing, unknown or expired token."""


AnyAuthenticator = Authenticator | AsyncAuthenticator
"""An authenticator for a registry that is served over HTTP. A hub with its own port accepts only `Authenticator`."""


def check_authenticator(authenticator: object) -> None:
    """Raise TypeError for an object without the method `authenticate`, such as a mapping of tokens."""
    if not callable(getattr(authenticator, "authenticate", None)):
        message = f"invalid authenticator of type {type(authenticator).__name__}: expected an object with the method"
        raise TypeError(f"{message} authenticate(token), such as StaticTokens({{token: Principal(…)}})")


class StaticTokens:
    """A fixed set of tokens: `{"token": Principal(…)}`."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        for token, principal in principals.items():
            if not _is_token(token):
                raise ValueError("invalid token: expected printable ASCII without leading or trailing spaces")
            if not isinstance(principal, Principal):
                kind = type(principal).__name__
                raise TypeError(f"invalid principal of type {kind}: expected Principal(Identity(…)) for each token")
        self._principals = dict(principals)

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal of a token; raise `ACCESS_DENIED` for an unknown token.

        The token is compared with every known token, in constant time.
        """
        if not token:
            raise _denied("no token")
        found: Principal | None = None
        given = token.encode(errors="replace")
        for known, principal in self._principals.items():
            if hmac.compare_digest(known.encode(), given):
                found = principal
        if found is None or not _is_token(token):
            raise _denied("unknown token")
        return found


class JWTTokens:
    """An authenticator for JWTs.

    The claim `sub` is the id of the identity, `scope` or `scopes` its scopes, `resources` its resources, and
    `namespaces` the namespaces where it may register operations. With the claim `speaksForCallers` set to false, nested
    calls of a worker have the worker's own identity. `key` is the key of the algorithm (a secret, a public key or its
    PEM) or a JWKS as a dict; from a JWKS, the token's key id selects the key. The claims `sub` and `exp` are required.
    A token is accepted until `leeway` seconds after its `exp`, to allow for differences between clocks.
    """

    def __init__(
        self,
        key: Any,
        *,
        algorithms: Sequence[str],
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        leeway: float = 10.0,
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise require_extra("PyJWT", "ws") from None
        if isinstance(algorithms, str) or not algorithms:
            raise ValueError(
                f"invalid algorithms {algorithms!r}: expected a list of the allowed algorithms, such as ['HS256']"
            )
        if not key:
            raise ValueError("the key that verifies tokens is empty")
        self._jwt = jwt
        self._keys = jwt.PyJWKSet.from_dict(dict(key)) if isinstance(key, Mapping) and "keys" in key else None
        self._key = key
        self._leeway = leeway
        self._options: dict[str, Any] = {"algorithms": list(algorithms), "leeway": leeway}
        if issuer is not None:
            self._options["issuer"] = issuer
        if audience is not None:
            self._options["audience"] = audience

    def authenticate(self, token: str | None) -> Principal:
        """Verify a token and return its principal; raise `ACCESS_DENIED` for a missing or invalid token."""
        if not token:
            raise _denied("no token")
        if not _is_token(token):
            raise _denied("invalid token (characters other than printable ASCII)")
        if token.endswith("="):  # connections are counted by token, so each token must have only one spelling
            raise _denied("invalid token (padding)")
        try:
            claims = self._jwt.decode(
                token, self._find_key(token), options={"require": ["sub", "exp"]}, **self._options
            )
        except self._jwt.PyJWTError as error:
            raise _denied(f"invalid token ({error})") from None
        scopes = claims.get("scopes", claims.get("scope", ()))
        identity = Identity(
            str(claims["sub"]),
            tuple(scopes.split()) if isinstance(scopes, str) else _texts(scopes),
            _resources(claims.get("resources")),
            claims,
        )
        speaks = claims.get("speaksForCallers") is not False
        audience = claims.get("aud")
        audiences = (audience,) if isinstance(audience, str) else _texts(audience)
        expires = int(claims["exp"]) + self._leeway
        return Principal(identity, _texts(claims.get("namespaces")), expires, speaks, audiences)

    def _find_key(self, token: str) -> Any:
        """Return the key; from a JWKS, the key whose id is in the token's header."""
        if self._keys is None:
            return self._key
        name = self._jwt.get_unverified_header(token).get("kid")
        for key in self._keys.keys:
            if key.key_id == name:
                return key
        raise self._jwt.InvalidTokenError(f"no key has the id {name!r}")


def _is_token(token: str) -> bool:
    """Whether a token can be sent in a header."""
    return bool(token) and token.isascii() and token.isprintable() and token == token.strip()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else ()


def _resources(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(resource): _texts(actions) for resource, actions in value.items()}


def _denied(what: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, f"authentication failed: {what}")
