"""`ops keys`: API keys for `ops serve`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec

from operations.cli.arguments import Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import find_configuration
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_json
from operations.cli.stderr import write_line
from operations.cli.terminal import printable, write_text
from operations.identity.api_keys import APIKey, APIKeys

_UNITS = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


def create(args: ParsedArguments) -> int:
    """Create a key and print it once."""
    resources: dict[str, list[str]] = {}
    for resource, action in dict.fromkeys(args.resource):
        resources.setdefault(resource, []).append(action)
    token, kept = _keys(args).create(args.identity, scopes=args.scope, resources=resources, lifetime=args.expires)
    if args.json:
        write_json({"key": token, **_described(kept)}, compact=True)
        return OK
    write_text(f"{token}\n")
    if not args.quiet:
        write_line(f"created key {kept.id} for {printable(kept.identity)}; the key is not shown again")
    return OK


def show(args: ParsedArguments) -> int:
    """List the keys without their secrets."""
    entries = _keys(args).entries()
    if args.json:
        write_json([_described(each) for each in entries], compact=True)
        return OK
    for each in entries:
        ends = "never expires" if each.expires_at is None else f"expires {_date(each.expires_at)}"
        resources = [f"{name}={action}" for name, actions in each.resources.items() for action in actions]
        rights = " ".join([*each.scopes, *resources]) or "no scopes"
        write_text(f"{each.id}  {printable(each.identity)}  {printable(rights)}  {_date(each.created_at)}  {ends}\n")
    return OK


def revoke(args: ParsedArguments) -> int:
    """Remove a key, so that servers refuse it."""
    keys = _keys(args)
    if not keys.revoke(args.id):
        named = [each.id for each in keys.entries() if each.identity == args.id]
        hint = f"pass the id of a key of {args.id}: {', '.join(named)}" if named else "run 'ops keys ls' to list keys"
        raise CommandError(f"unknown key {args.id!r}", hint, exit_code=NOT_FOUND)
    if args.json:
        write_json({"revoked": args.id}, compact=True)
    elif not args.quiet:
        write_line(f"revoked key {args.id}; servers close its streams and connections")
    return OK


def _keys(args: ParsedArguments) -> APIKeys:
    if args.keys is not None:
        return APIKeys(Path(args.keys).expanduser())
    config = find_configuration(args)
    settings = config.serve if config is not None else None
    if config is None or settings is None or settings.keys is None:
        raise CommandError("no file of API keys configured", 'pass --keys FILE, or set keys = "keys.json" in [serve]')
    return APIKeys(config.path.parent / Path(settings.keys).expanduser())


def _described(key: APIKey) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(key)
    del data["sha256"]
    return data


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _lifetime(text: str) -> float:
    match = re.fullmatch(r"(\d{1,5})([hdwy])", text)
    if match is None or int(match[1]) < 1:
        raise ValueError(text)
    return float(int(match[1]) * _UNITS[match[2]])


def _resource(text: str) -> tuple[str, str]:
    """Split `TYPE:ID=ACTION` into the resource `TYPE:ID` and its action."""
    match = re.fullmatch(r"([^\s:=]+:\S+)=([^\s=,]+)", text)
    if match is None:
        raise ValueError(text)
    return match[1], match[2]


_FILE = Option(
    "--keys", "file of API keys (default: the file that keys in [serve] names)", value="FILE", completes="file"
)

COMMAND = Command(
    name="keys",
    summary=SUMMARIES["keys"],
    parts=(
        Command(
            name="keys new",
            summary="create a key and print it once",
            run=create,
            arguments=(Argument("IDENTITY", "identity of the caller"),),
            options=(
                Option("--scope", "scope of the key (default: none)", value="SCOPE", many=True),
                Option(
                    "--resource",
                    "action that the key allows on a resource (default: none)",
                    value="TYPE:ID=ACTION",
                    convert=_resource,
                    many=True,
                ),
                Option("--expires", "lifetime: 12h, 30d, 8w, 1y (default: no end)", value="TIME", convert=_lifetime),
                _FILE,
            ),
            examples=(
                ("ops keys new reporting --scope orders:read --expires 90d", "create a key for another program"),
                (
                    "ops keys new ada --resource account:7=read --resource account:7=close",
                    "allow two actions on account 7",
                ),
            ),
        ),
        Command(name="keys ls", summary="list keys without their secrets", run=show, options=(_FILE,)),
        Command(
            name="keys revoke",
            summary="revoke a key",
            run=revoke,
            arguments=(Argument("ID", "id of the key, from `ops keys ls`"),),
            options=(_FILE,),
        ),
    ),
)
