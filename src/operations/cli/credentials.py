"""The authenticator of `ops serve`: accepts the tokens, API keys, JWTs and issuers that a configuration lists.

`ops hub` uses only `principals_of` and `own_token`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from operations.cli.arguments import TOKEN_VARIABLE, ParsedArguments
from operations.cli.failures import DENIED, CommandError
from operations.cli.transports import jwt_tokens
from operations.config import Config
from operations.config.settings import ServeSettings, TokenSettings
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import AnyAuthenticator, Principal, StaticTokens
from operations.identity.api_keys import APIKeys
from operations.identity.issuer_tokens import IssuerTokens

OPERATOR = "operator"


def authenticator_of(
    settings: ServeSettings, args: ParsedArguments, config: Config | None, *, accepts_own: bool = True
) -> AnyAuthenticator | None:
    """Return the authenticator of a configuration; None if it has no credentials, so that callers are anonymous.

    `accepts_own` adds the token of `--token-file` or `OPERATIONS_TOKEN` to the accepted ones.
    """
    folder = config.path.parent if config is not None else Path()
    accepted: list[AnyAuthenticator] = []
    principals = principals_of(settings.tokens)
    own = own_token(args)
    if own and accepts_own:
        # The holder of the only credential makes all calls, and may therefore watch and manage all of them.
        is_only = not (principals or args.keys or settings.keys or settings.jwt or settings.issuer)
        scopes = [*args.scope, "operations:watch", "operations:manage"] if is_only else args.scope
        principals.setdefault(own, Principal(Identity(OPERATOR, scopes), ("*",)))
    if principals:
        accepted.append(StaticTokens(principals))
    keys = args.keys or (str(folder / Path(settings.keys).expanduser()) if settings.keys is not None else None)
    if keys is not None:
        accepted.append(APIKeys(keys))
    if settings.jwt is not None:
        accepted.append(jwt_tokens(settings.jwt, config))
    if settings.issuer is not None:
        issuer = settings.issuer
        audience = issuer.audience or [settings.public_url or "", f"{settings.public_url}/mcp"]
        accepted.append(IssuerTokens(issuer.url, audience=audience, keys_url=issuer.keys_url))
    if not accepted:
        return None
    return accepted[0] if len(accepted) == 1 else AnyOf(accepted)


def principals_of(tokens: Iterable[TokenSettings]) -> dict[str, Principal]:
    """Return a mapping from each configured token to its principal."""
    return {
        each.token: Principal(
            Identity(each.identity, tuple(each.scopes), {name: tuple(held) for name, held in each.resources.items()}),
            tuple(each.namespaces),
        )
        for each in tokens
    }


def own_token(args: ParsedArguments) -> str | None:
    """Return the token in `--token-file` or `OPERATIONS_TOKEN`; None if neither is set. Raise if the file is empty."""
    if not args.token_file:
        return os.environ.get(TOKEN_VARIABLE)
    token = Path(args.token_file).read_text().strip()
    if not token:
        raise CommandError(f"{args.token_file} has no token", "write the token to the file")
    return token


async def stdio_principal(settings: ServeSettings, args: ParsedArguments, config: Config) -> Principal | None:
    """Return the caller of a server on standard input and output, authenticated by `OPERATIONS_TOKEN`.

    Return None without the variable or without configured credentials: then the caller is the local user.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    authenticator = authenticator_of(settings, args, config, accepts_own=False)
    if not token or authenticator is None:
        return None
    try:
        verdict = authenticator.authenticate(token)
        return verdict if isinstance(verdict, Principal) else await verdict
    except CallError as error:
        if error.code is not ErrorCode.ACCESS_DENIED:
            raise
        hint = "set a valid token, or unset the variable to serve the local user"
        raise CommandError(
            f"the token in {TOKEN_VARIABLE} was refused: {error.message}", hint, exit_code=DENIED
        ) from None


class AnyOf:
    """Several authenticators, tried in order until one accepts a token."""

    def __init__(self, authenticators: Sequence[AnyAuthenticator]) -> None:
        self._authenticators = authenticators

    async def authenticate(self, token: str | None) -> Principal:
        """Return the principal of the first authenticator that accepts the token."""
        refused = CallError(ErrorCode.ACCESS_DENIED, "invalid token")
        for each in self._authenticators:
            try:
                verdict = each.authenticate(token)
                return verdict if isinstance(verdict, Principal) else await verdict
            except CallError as error:
                if error.code is not ErrorCode.ACCESS_DENIED:
                    refused = error
        raise refused

    def has_changed(self) -> bool:
        """Whether a file of API keys has changed, so that keys may have been revoked."""
        changed = [each.has_changed() for each in self._authenticators if isinstance(each, APIKeys)]
        return any(changed)
