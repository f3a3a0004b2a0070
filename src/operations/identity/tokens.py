"""Who is at the other end of a connection: tokens and a pluggable authenticator; static tokens and JWT included."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.pubsub import require_extra


class Principal(msgspec.Struct, frozen=True):
    """An authenticated peer: who it is, where it may register operations, and until when it is believed."""

    identity: Identity
    namespaces: Sequence[str] = ()
    """The namespaces it may register in, and everything below them; `*` is all of them."""
    expires_at: float | None = None
    """Epoch seconds."""
    speaks_for_callers: bool = True
    """Whether calls that it makes while it runs a caller's request are made as that caller, as they are in one process.

    Where it is not trusted so far, they are made in its own name, with what both of them may do.
    """
    audiences: Sequence[str] = ()
    """Whom its token is for; empty where the token does not say."""

    def identity_for(self, caller: Identity | None) -> Identity | None:
        """Who makes the calls that this peer makes while it runs a request of `caller`; nobody's are nobody's."""
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
        """Whether this peer may register operations in a namespace or in one below it; `*` is above all."""
        if namespace == "*":
            return bool(self.namespaces)
        below = f"{namespace}."
        return self.may_register(namespace) or any(allowed.startswith(below) for allowed in self.namespaces)


class Authenticator(Protocol):
    """Decides who a token belongs to."""

    def authenticate(self, token: str | None) -> Principal:
        """The principal; raises `ACCESS_DENIED` for a token that is missing, unknown or no longer valid."""


class AsyncAuthenticator(Protocol):
    """Decides who a token belongs to, after asking somebody else."""

    async def authenticate(self, token: str | None) -> Principal:
        """The principal; raises `ACCESS_DENIED` for a token that is missing, unknown or no longer valid."""


AnyAuthenticator = Authenticator | AsyncAuthenticator
"""What a served application accepts; a hub with a port of its own needs a synchronous one."""


class StaticTokens:
    """Tokens known beforehand: `{"token": Principal(…)}`."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        for token in principals:
            if not _is_token(token):
                raise ValueError("invalid token: expected printable ASCII characters, at least one")
        self._principals = dict(principals)

    def authenticate(self, token: str | None) -> Principal:
        """Return the principal of a token; every known one is compared, in constant time each."""
        if not token:
            raise _denied("no token")
        found: Principal | None = None
        given = token.encode(errors="replace")
        for known, principal in self._principals.items():
            if hmac.compare_digest(known.encode(), given):
                found = principal
        if found is None or not _is_token(token):
            raise _denied("an unknown token")
        return found


class JWTTokens:
    """Signed tokens: `sub` is the identity, `scope` or `scopes` its scopes, `namespaces` where it may register.

    `speaksForCallers` set to false has a worker make nested calls in its own name.
    `key` is the key of the algorithm (a secret, a public key, its PEM), or a JWKS as a dict, whose key the token names.
    For clocks that differ, a token is believed for `leeway` seconds after its `exp`.
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
            raise ValueError(f"algorithms is {algorithms!r}: give a list of those that tokens may use, as ['HS256']")
        if not key:
            raise ValueError("the key that tokens are checked with is empty")
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
        """Return the principal that a valid signature vouches for."""
        if not token:
            raise _denied("no token")
        if not _is_token(token):
            raise _denied("an invalid token (it has characters that are not printable ASCII)")
        try:
            claims = self._jwt.decode(
                token, self._find_key(token), options={"require": ["sub", "exp"]}, **self._options
            )
        except self._jwt.PyJWTError as error:
            raise _denied(f"an invalid token ({error})") from None
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
        """The one key, or of several the one that the token's header names."""
        if self._keys is None:
            return self._key
        name = self._jwt.get_unverified_header(token).get("kid")
        for key in self._keys.keys:
            if key.key_id == name:
                return key
        raise self._jwt.InvalidTokenError(f"no key has the id {name!r}")


def _is_token(token: str) -> bool:
    """Whether a token can be sent in a header."""
    return bool(token) and token.isascii() and token.isprintable()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else ()


def _resources(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(resource): _texts(actions) for resource, actions in value.items()}


def _denied(what: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, f"the connection came with {what}")
