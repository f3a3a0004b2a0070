"""Identity: tokens and API keys, their authenticators, grants for nested calls, and rate limits."""

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
