"""`doctor`: opens every source, looks at the environment, and says what to fix."""

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

from operations.cli.arguments import Command, Given
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import no_config, read_configuration, search
from operations.cli.failures import DENIED, OK, TRANSPORT, USAGE, conclude
from operations.cli.output import counted, duration, write_json
from operations.cli.session import refresh_catalogue
from operations.cli.stderr import spinning
from operations.cli.terminal import paint, printable, write_text
from operations.config import Config, SourceReport, Workspace, load_catalogue
from operations.config.actions import actions_of, digest_actions
from operations.config.settings import OpenAPISettings
from operations.config.trust import VARIABLE, is_trusted, read_trust
from operations.errors import CallError, ErrorCode

_EXTRAS = {
    "openapi": ("pyreqwest", "API documents"),
    "mcp": ("mcp", "MCP servers"),
    "ws": ("picows", "a hub and its spokes"),
    "redis": ("hiredis", "the Redis bus"),
    "nats": ("cryptography", "signed credentials of NATS"),
    "cli": ("jq", "--jq"),
}
_REACH_WITHIN = 3.0
_REACH_FIX = "is it running? base_url names another address than the document's"
_NEEDS = {"openapi": "openapi", "mcp": "mcp"}


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `note` or `bad`, and what to do about it."""

    state: str
    what: str
    about: str = ""
    fix: str = ""


def run(given: Given) -> Any:
    """Look."""
    return _look(given)


async def _look(given: Given) -> int:
    findings = [Finding("ok", "Python", sys.version.split()[0])]
    config, code = _configuration(given, findings)
    trust = None if config is None else _trust(given, config)
    if trust is not None:
        findings.append(trust)
        code = DENIED if trust.state == "bad" else code
    findings += _extras(config)
    if config is not None and code == OK:
        started = time.perf_counter()
        async with spinning("opening", quiet=given.quiet) as line:
            workspace = await refresh_catalogue(config, None, line)
        opened = [found for report in workspace.reports for found in _source(report)]
        opened += await asyncio.gather(*map(_reach, _addresses(workspace)))
        unusable = [Finding("bad", name.replace("s.", " ", 1), why) for name, why in config.unusable.items()]
        findings += [*opened, *unusable]
        code = _exit_code(config, opened, unusable)
        findings.append(_cache(config, time.perf_counter() - started))
    _print(given, findings)
    bad = [found.what for found in findings if found.state == "bad"]
    return conclude(code, f"something is wrong: {', '.join(dict.fromkeys(bad))}", "see fix in the findings")


def _exit_code(config: Config, opened: list[Finding], unusable: list[Finding]) -> int:
    """Return 6 where a source does not open, 2 where all that is wrong is in the file."""
    bad = [found.what for found in opened if found.state == "bad"]
    if all(config.sources[what.removeprefix("source ")].problem is not None for what in bad):
        return USAGE if bad or unusable else OK
    return TRANSPORT


def _configuration(given: Given, findings: list[Finding]) -> tuple[Config | None, int]:
    """Return the configuration and the exit code so far."""
    found = search(given)
    if found.refused:
        findings.append(Finding("bad", "configuration", found.refused, "copy it, to have one of your own"))
        return None, DENIED
    if found.path is None:
        findings.append(Finding("bad", "configuration", no_config(given), "ops init makes one"))
        return None, USAGE
    try:
        config = read_configuration(found.path)
    except CallError as error:
        is_invalid = error.code == ErrorCode.VALIDATION_ERROR
        fix = "fix the file; ops config schema is for editors" if is_invalid else "copy it, to have one of your own"
        findings.append(Finding("bad", "configuration", error.message, fix))
        return None, USAGE if is_invalid else DENIED
    findings.append(Finding("ok", "configuration", str(found.path)))
    return config, OK


def _trust(given: Given, config: Config) -> Finding:
    """Whether the configuration is trusted, why, and what that allows."""
    digest, record = digest_actions(config), read_trust(config.path)
    if not digest:
        return Finding("ok", "trust", "not needed: it starts, imports and sends nothing")
    allowed = "\n".join(f"{' '.join(action.text.split())}  ({action.name})" for action in actions_of(config))
    if record is not None and record.digest == digest:
        since = time.strftime("%Y-%m-%d", time.localtime(record.since))
        return Finding("ok", "trust", f"by {record.by}, since {since}; it may\n{allowed}")
    if given.trust or is_trusted(config.path, digest):
        way = "--trust" if given.trust else f"{VARIABLE}=1"
        return Finding("ok", "trust", f"by {way}, for this command; it may\n{allowed}")
    state = "it is not trusted" if record is None else "it has changed since it was trusted"
    return Finding("bad", "trust", f"{state}; it would\n{allowed}", "ops trust, if that is what you want to run")


def _extras(config: Config | None) -> Iterator[Finding]:
    """Which optional parts are there; one that the configuration needs and is not there is bad."""
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
        yield Finding("bad", f"source {report.name}", report.problem or "it cannot be opened", report.hint or "")
        return
    count = counted(report.operations, "operation")
    state = "ok" if report.operations else "note"
    yield Finding(state, f"source {report.name}", f"{report.kind}, {count}, {duration(report.seconds)}")
    for note in report.notes:
        yield Finding("note", f"source {report.name}", note, "see its patterns in the configuration")
    for skipped in report.skipped:
        yield Finding("note", f"source {report.name}", f"{skipped.path} was skipped: {skipped.reason}")


def _addresses(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Where APIs are called, be it that their documents say so; through a proxy there is nothing to find out."""
    for name, opened in workspace.opened.items():
        settings = workspace.config.sources[name].settings
        proxied = isinstance(settings, OpenAPISettings) and settings.proxy is not None
        if opened.address and not proxied and not getproxies():
            yield name, opened.address


async def _reach(address: tuple[str, str]) -> Finding:
    """Whether anybody listens where an API is called."""
    name, url = address
    parts = urlsplit(url)
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # to be shown: without credentials
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(_REACH_WITHIN):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except TimeoutError:
        return Finding("bad", f"source {name}", f"{url} does not answer", _REACH_FIX)
    except gaierror:
        return Finding(
            "bad", f"source {name}", f"{url} cannot be reached: there is no host {parts.hostname}", _REACH_FIX
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return Finding("bad", f"source {name}", f"{url} cannot be reached: {reason}", _REACH_FIX)
    except ValueError:
        return Finding("bad", f"source {name}", f"{url} is no address of a server", "base_url names another")
    return Finding("ok", f"source {name}", f"{url} answers")


def _cache(config: Config, seconds: float) -> Finding:
    catalogue = load_catalogue(config.path)
    if catalogue is None:
        return Finding("note", "cache", "it cannot be written: every command opens the sources", "see XDG_CACHE_HOME")
    return Finding("ok", "cache", f"{counted(len(catalogue.entries), 'operation')}, written in {duration(seconds)}")


def _print(given: Given, findings: list[Finding]) -> None:
    if given.json:
        write_json([finding._asdict() for finding in findings])
        return
    signs = {"ok": paint("green", "✓"), "note": paint("yellow", "-"), "bad": paint("red", "✗")}
    widest = max(len(finding.what) for finding in findings)
    for finding in findings:
        if given.quiet and finding.state == "ok":
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
    examples=(("ops doctor", "everything"), ("ops doctor --quiet", "only what is wrong")),
)
