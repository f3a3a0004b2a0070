"""`ops doctor`: check the environment and every source, and report what to fix."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from socket import gaierror
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from operations.cli.arguments import Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import no_config, read_configuration, search
from operations.cli.failures import DENIED, OK, TRANSPORT, USAGE, report_exit
from operations.cli.output import counted, duration, write_json
from operations.cli.session import open_sources
from operations.cli.stderr import spinner
from operations.cli.terminal import paint, printable, write_text
from operations.config import Config, SourceReport, Workspace, load_catalogue, store_catalogue
from operations.config.actions import actions_of, digest_actions
from operations.config.settings import OpenAPISettings
from operations.config.trust import VARIABLE, is_trusted, read_trust, trust_command
from operations.context import OperationContext
from operations.errors import CallError, ErrorCode
from operations.spec import OperationSpec, OperationType

_EXTRAS = {
    "openapi": ("pyreqwest", "OpenAPI documents"),
    "mcp": ("mcp", "MCP servers"),
    "serve": ("uvicorn", "ops serve"),
    "ws": ("picows", "hubs and spokes"),
    "redis": ("hiredis", "Redis transports"),
    "nats": ("cryptography", "NATS credentials"),
    "cli": ("jq", "--jq"),
}
_CONNECT_TIMEOUT = 3.0
_PROBE_FIX = "start the server, or set base_url to its address"
_NEEDS = {"openapi": "openapi", "mcp": "mcp"}


class Finding(NamedTuple):
    """Result of one check: its state (`ok`, `note` or `bad`), its subject, details, and how to fix a problem."""

    state: str
    what: str
    about: str = ""
    fix: str = ""


def run(args: ParsedArguments) -> Any:
    """Run every check, and report what to fix."""
    return _check(args)


async def _check(args: ParsedArguments) -> int:
    findings = [Finding("ok", "Python", sys.version.split()[0])]
    config, code = _configuration(args, findings)
    trust = None if config is None else _trust(args, config)
    if trust is not None:
        findings.append(trust)
        code = DENIED if trust.state == "bad" else code
    findings += _extras(config)
    if config is not None and code == OK:
        started = time.perf_counter()
        async with spinner("opening", quiet=args.quiet) as line, open_sources(config, None, line) as workspace:
            store_catalogue(workspace)
            opened = [found for report in workspace.reports for found in _source(report)]
            opened += map(_unmatched_rule, workspace.unmatched_rules())
            opened += await asyncio.gather(*map(_probe, _addresses(workspace)))
            opened += [found for name in workspace.opened for found in await _credentials(workspace, name)]
        unusable = [Finding("bad", name.replace("s.", " ", 1), why) for name, why in config.unusable.items()]
        findings += [*opened, *unusable]
        code = _exit_code(config, opened, unusable)
        findings.append(_cache(config, time.perf_counter() - started))
    _print(args, findings)
    bad = [found.what for found in findings if found.state == "bad"]
    return report_exit(code, f"checks failed: {', '.join(dict.fromkeys(bad))}", "see `fix` in each finding")


def _exit_code(config: Config, opened: list[Finding], unusable: list[Finding]) -> int:
    """Return 6 if a source cannot be opened or used, 2 if only the configuration is wrong, else 0."""
    bad = [found.what for found in opened if found.state == "bad"]
    if all(config.sources[what.removeprefix("source ")].problem is not None for what in bad):
        return USAGE if bad or unusable else OK
    return TRANSPORT


def _configuration(args: ParsedArguments, findings: list[Finding]) -> tuple[Config | None, int]:
    """Return the configuration and 0; if it cannot be read, None and the exit code for this problem."""
    found = search(args)
    if found.refused:
        findings.append(Finding("bad", "configuration", found.refused, "copy the file, and use your copy"))
        return None, DENIED
    if found.path is None:
        findings.append(Finding("bad", "configuration", no_config(args), "run 'ops init' to create one"))
        return None, USAGE
    try:
        config = read_configuration(found.path)
    except CallError as error:
        is_invalid = error.code == ErrorCode.VALIDATION_ERROR
        fix = (
            "fix the file; 'ops config schema' prints its schema" if is_invalid else "copy the file, and use your copy"
        )
        findings.append(Finding("bad", "configuration", error.message, fix))
        return None, USAGE if is_invalid else DENIED
    findings.append(Finding("ok", "configuration", str(found.path)))
    return config, OK


def _trust(args: ParsedArguments, config: Config) -> Finding:
    """Check whether the configuration is trusted, and list the actions that require trust."""
    digest, record = digest_actions(config), read_trust(config.path)
    if not digest:
        return Finding("ok", "trust", "not needed: the configuration has no actions that require trust")
    allowed = "\n".join(f"{' '.join(action.text.split())}  ({action.name})" for action in actions_of(config))
    if record is not None and record.digest == digest:
        since = time.strftime("%Y-%m-%d", time.localtime(record.since))
        return Finding("ok", "trust", f"by {record.by}, since {since}; allowed actions:\n{allowed}")
    if args.trust or is_trusted(config.path, digest):
        way = "--trust" if args.trust else f"{VARIABLE}=1"
        return Finding("ok", "trust", f"by {way}, for this command; allowed actions:\n{allowed}")
    state = "not trusted" if record is None else "changed since it was trusted"
    fix = f"run '{trust_command(config.path)}' to allow these actions"
    return Finding("bad", "trust", f"{state}; actions:\n{allowed}", fix)


def _extras(config: Config | None) -> Iterator[Finding]:
    """Check which extras are installed; a missing extra that the configuration needs is a problem."""
    kinds = {source.kind for source in config.sources.values()} if config is not None else set()
    needed = {_NEEDS[kind] for kind in kinds if kind in _NEEDS}
    for extra, (module, purpose) in _EXTRAS.items():
        if find_spec(module) is not None:
            yield Finding("ok", f"extra {extra}", f"for {purpose}")
        else:
            fix = f"pip install 'operations[{extra}]'"
            yield Finding("bad" if extra in needed else "note", f"extra {extra}", f"not installed; for {purpose}", fix)


def _source(report: SourceReport) -> Iterator[Finding]:
    if report.state == "failed":
        yield Finding("bad", f"source {report.name}", report.problem or "cannot be opened", report.hint or "")
        return
    count = counted(report.operations, "operation")
    state = "ok" if report.operations else "note"
    yield Finding(state, f"source {report.name}", f"{report.kind}, {count}, {duration(report.seconds)}")
    for note in report.notes:
        yield Finding("note", f"source {report.name}", note, "check the source's patterns in the configuration")
    for skipped in report.skipped:
        yield Finding("note", f"source {report.name}", f"{skipped.path} was skipped: {skipped.reason}")


def _unmatched_rule(pattern: str) -> Finding:
    return Finding("note", "access", f"{pattern!r} matches no operation", "compare the rule with the ids of 'ops ls'")


def _addresses(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Yield name and base URL of each API source without a proxy. A connection to a proxy would prove nothing."""
    for name, opened in workspace.opened.items():
        settings = workspace.config.sources[name].settings
        proxied = isinstance(settings, OpenAPISettings) and settings.proxy is not None
        if opened.address and not proxied and not getproxies():
            yield name, opened.address


async def _probe(address: tuple[str, str]) -> Finding:
    """Check whether a server listens at an API's base URL."""
    name, url = address
    parts = urlsplit(url)
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without credentials, for display
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except TimeoutError:
        return Finding("bad", f"source {name}", f"{url} does not respond", _PROBE_FIX)
    except gaierror:
        return Finding("bad", f"source {name}", f"{url} cannot be reached: unknown host {parts.hostname}", _PROBE_FIX)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return Finding("bad", f"source {name}", f"{url} cannot be reached: {reason}", _PROBE_FIX)
    except ValueError:
        return Finding("bad", f"source {name}", f"{url} is not a valid URL", "set base_url")
    return Finding("ok", f"source {name}", f"{url} responds")


async def _credentials(workspace: Workspace, name: str) -> list[Finding]:
    """Check whether an API's required credentials are configured, and whether the API accepts them."""
    source = workspace.config.sources[name]
    if source.kind != "openapi":
        return []
    specs = [spec for each in workspace.ids_of(name) if (spec := workspace.registry.get_spec(each)) is not None]
    secured = [spec for spec in specs if all(spec.annotations.get("security") or [()])]
    from operations.cli.api_credentials import missing_credentials  # needs the extra `openapi`

    opened = workspace.opened[name]
    missing = [hint for spec in secured if (hint := missing_credentials(source, spec.annotations["security"], opened))]
    if missing:
        about = f"{len(missing):,} of {counted(len(specs), 'operation')} require credentials that are not configured"
        return [Finding("note", f"source {name}", about, missing[0])]
    harmless = (spec for spec in secured if spec.type is OperationType.QUERY and spec.input_schema.check({}))
    tried = next(harmless, None)
    return [] if tried is None else await _try(workspace, name, tried)


async def _try(workspace: Workspace, name: str, spec: OperationSpec) -> list[Finding]:
    """Call an operation that only reads and needs no input, to see whether the API accepts the credentials."""
    context = OperationContext(deadline=int((time.time() + _CONNECT_TIMEOUT) * 1000))
    shown = f"{spec.annotations.get('method')} {spec.annotations.get('path')}"
    try:
        await workspace.registry.execute(spec.id, {}, context)
    except CallError as error:
        status = error.details.get("statusCode") if isinstance(error.details, dict) else None
        if status in (401, 403):
            about = f"the API refused the credentials: {shown} returned {status}"
            return [Finding("bad", f"source {name}", about, "check the source's auth in operations.toml")]
        return []
    return [Finding("ok", f"source {name}", f"the API accepts the credentials: {shown}")]


def _cache(config: Config, seconds: float) -> Finding:
    catalogue = load_catalogue(config.path)
    if catalogue is None:
        return Finding(
            "note",
            "cache",
            "cannot be written: every command opens the sources again",
            "set XDG_CACHE_HOME to a writable directory",
        )
    return Finding("ok", "cache", f"{counted(len(catalogue.entries), 'operation')}, written in {duration(seconds)}")


def _print(args: ParsedArguments, findings: list[Finding]) -> None:
    if args.json:
        write_json([finding._asdict() for finding in findings])
        return
    signs = {"ok": paint("green", "✓"), "note": paint("yellow", "-"), "bad": paint("red", "✗")}
    widest = max(len(finding.what) for finding in findings)
    for finding in findings:
        if args.quiet and finding.state == "ok":
            continue
        head, *rest = printable(finding.about).split("\n")
        write_text(f"{signs[finding.state]} {printable(finding.what):<{widest}}  {head}\n")
        indent = " " * (widest + 4)
        write_text("".join(f"{indent}{line}\n" for line in rest))
        if finding.fix:
            write_text(f"{indent}{paint('dim', 'fix:')} {printable(finding.fix)}\n")


COMMAND = Command(
    name="doctor",
    summary=SUMMARIES["doctor"],
    run=run,
    examples=(("ops doctor", "run every check"), ("ops doctor --quiet", "print only problems")),
)
