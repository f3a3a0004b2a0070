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
from operations.cli.failures import OK, TRANSPORT, USAGE, conclude
from operations.cli.output import counted, duration, write_json
from operations.cli.session import config_path, no_config, read_configuration, refresh_catalogue
from operations.cli.status import spinning
from operations.cli.terminal import paint, printable, write_text
from operations.config import Config, SourceReport, Workspace, load_catalogue
from operations.config.settings import OpenAPISettings
from operations.errors import CallError

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
    code = OK
    config: Config | None = None
    try:
        path = config_path(given)
        if path is None:
            findings.append(Finding("bad", "configuration", no_config(), "ops init makes one"))
            code = USAGE
        else:
            config = read_configuration(path)
            findings.append(Finding("ok", "configuration", str(path)))
    except CallError as error:
        findings.append(
            Finding("bad", "configuration", error.message, "mend the file; ops config schema is for editors")
        )
        code = USAGE
    findings += _extras(config)
    if config is not None:
        started = time.perf_counter()
        async with spinning("opening", quiet=given.quiet) as line:
            workspace = await refresh_catalogue(config, None, line)
        opened = [found for report in workspace.reports for found in _source(report)]
        opened += await asyncio.gather(*map(_reach, _addresses(workspace)))
        findings += opened
        if any(found.state == "bad" for found in opened):
            code = TRANSPORT
        findings.append(_cache(config, time.perf_counter() - started))
    _print(given, findings)
    bad = [found.what for found in findings if found.state == "bad"]
    return conclude(code, f"something is wrong: {', '.join(dict.fromkeys(bad))}", "see fix in the findings")


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
