"""Who a peer is and for whom it acts: tokens, their authenticators, and grants."""

from operations.identity.grants import Grants
from operations.identity.tokens import Authenticator, JWTTokens, Principal, StaticTokens

__all__ = ["Authenticator", "Grants", "JWTTokens", "Principal", "StaticTokens"]
