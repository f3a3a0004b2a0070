"""Who a peer is and for whom it acts: tokens, their authenticators, and grants."""

from operations.identity.grants import Grants
from operations.identity.tokens import (
    AnyAuthenticator,
    AsyncAuthenticator,
    Authenticator,
    JWTTokens,
    Principal,
    StaticTokens,
)

__all__ = [
    "AnyAuthenticator",
    "AsyncAuthenticator",
    "Authenticator",
    "Grants",
    "JWTTokens",
    "Principal",
    "StaticTokens",
]
