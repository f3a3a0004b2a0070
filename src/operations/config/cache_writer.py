"""store_catalogue: write the catalogue cache of an open workspace."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from operations.config.actions import digest_actions
from operations.config.cache import (
    MAGIC,
    CachedSource,
    CacheHeader,
    Catalogue,
    CatalogueEntry,
    Stamp,
    cache_path,
    digest_file,
    digest_variable,
    load_catalogue,
    stamp,
)
from operations.config.redaction import secret_variables
from operations.config.settings import Source
from operations.config.sources import expected_file
from operations.config.workspace import Workspace, skip_duplicate
from operations.local_files import write_atomically
from operations.spec import OperationSpec

_log = logging.getLogger("operations.config")

_MAX_SPEC_BYTES = 256 * 1024
_MAX_BYTES = 64 * 1024 * 1024
_MAX_SKIPPED = 100
_CONFIG_SUFFIXES = (".toml", ".json")


class _Row(msgspec.Struct):
    """A row to be written, with its encoded spec."""

    entry: CatalogueEntry
    spec: bytes


def store_catalogue(
    workspace: Workspace, *, before: Catalogue | None = None, environ: Mapping[str, str] | None = None
) -> Path | None:
    """Write the cache of a workspace's configuration; return the path of the cache, or None if it cannot be written.

    Sources that are not open keep their entries from `before`, by default the present cache. If the configuration has
    changed, pass the cache that was loaded before the change as `before`.
    """
    config = workspace.config
    values = os.environ if environ is None else environ
    before = before or load_catalogue(config.path, environ=environ)
    rows, hidden_rows = _resolve([*_opened(workspace), *_earlier_rows(workspace, before)], list(config.sources))
    entries, specs = _lay_out(rows)
    encoded = msgspec.msgpack.encode(entries)
    salt = secrets.token_bytes(16)
    hidden = secret_variables(config)
    header = CacheHeader(
        configuration={str(path): digest_file(str(path)) for path in config.files if path.suffix in _CONFIG_SUFFIXES},
        files=[stamp(str(path)) for path in config.files if path.suffix not in _CONFIG_SUFFIXES],
        salt=salt,
        variables={
            **{name: digest_variable(values.get(name), salt) for name in config.variables if name not in hidden},
            **dict.fromkeys(config.unset_variables, ""),
        },
        sources=_hide(_sources(workspace, before), hidden_rows),
        rows=len(encoded),
        trust=digest_actions(config),
    )
    first = msgspec.msgpack.encode(header)
    content = b"".join((MAGIC, len(first).to_bytes(8, "big"), first, encoded, *specs))
    return _write(cache_path(config.path, environ), content)


def _opened(workspace: Workspace) -> Iterator[_Row]:
    for name in workspace.opened:
        for operation_id in workspace.ids_of(name):
            spec = workspace.registry.get_spec(operation_id)
            if spec is not None:
                yield _row(spec, name)


def _resolve(rows: Sequence[_Row], order: Sequence[str]) -> tuple[list[_Row], dict[str, dict[str, str]]]:
    """Return the rows without duplicate ids, and the owners of the duplicates.

    Of several rows with the same id, the row of the source that is first in `order` is kept: this source owns the id.
    The second result maps the name of each other source to its duplicate ids with their owners.
    """
    position = {name: index for index, name in enumerate(order)}
    found: dict[str, _Row] = {}
    hidden: dict[str, dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row.entry.id, position[row.entry.source])):
        first = found.setdefault(row.entry.id, row)
        if first is not row:
            hidden.setdefault(row.entry.source, {})[row.entry.id] = first.entry.source
    return list(found.values()), hidden


def _hide(sources: Sequence[CachedSource], hidden: Mapping[str, Mapping[str, str]]) -> list[CachedSource]:
    """Return the sources, with their duplicate ids (`hidden`) listed as skipped and hidden, and not counted."""
    return [
        msgspec.structs.replace(
            source,
            operations=source.operations - len(hidden.get(source.name, ())),
            skipped=[*source.skipped, *_skips(hidden.get(source.name, {}))][:_MAX_SKIPPED],
            hidden=[*source.hidden, *hidden.get(source.name, ())],
        )
        for source in sources
    ]


def _skips(hidden: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for operation_id, owner in hidden.items():
        skip = skip_duplicate(operation_id, operation_id, owner)
        yield skip.path, skip.reason


def _row(spec: OperationSpec, source: str) -> _Row:
    entry = CatalogueEntry(
        id=spec.id,
        type=spec.type.value,
        title=spec.title or "",
        description=spec.description.strip().partition("\n")[0][:300],
        source=source,
        tags=list(spec.tags),
        fields=_fields(spec),
        method=str(spec.annotations.get("method", "")),
        path=str(spec.annotations.get("path", "")),
    )
    try:
        text = msgspec.json.encode(spec.to_dict(), enc_hook=str)
    except (TypeError, ValueError, RecursionError):
        text = b""
    return _Row(entry, text)


def _fields(spec: OperationSpec) -> list[str]:
    document = spec.input_schema.document
    properties = document.get("properties") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(properties, dict):
        return []
    required = [name for name in document.get("required", ()) if name in properties]
    return [*required, *(name for name in properties if name not in required)]


def _earlier_rows(workspace: Workspace, before: Catalogue | None) -> Iterator[_Row]:
    """Yield the rows of `before` whose sources are not open.

    For a source that failed to open, leave out the ids that another source has now registered.
    """
    failed = {report.name for report in workspace.reports if report.state == "failed"}
    for entry in before.entries if before is not None else ():
        if (
            entry.source not in workspace.opened
            and entry.source in workspace.config.sources
            and not (entry.source in failed and entry.id in workspace.registry)
        ):
            spec = before.spec(entry.id) if before is not None else None
            yield _Row(entry, b"" if spec is None else msgspec.json.encode(spec))


def _lay_out(rows: Sequence[_Row]) -> tuple[list[CatalogueEntry], list[bytes]]:
    """Return the entries with the positions of their specs, and the specs; oversized specs are omitted."""
    entries: list[CatalogueEntry] = []
    specs: list[bytes] = []
    # Position (0, 0) marks a spec that is not stored.
    at = 1
    specs.append(b"\n")
    for row in rows:
        stored = 0 < len(row.spec) <= _MAX_SPEC_BYTES and at + len(row.spec) <= _MAX_BYTES
        position = (at, len(row.spec)) if stored else (0, 0)
        entries.append(msgspec.structs.replace(row.entry, position=position))
        if stored:
            specs.append(row.spec)
            at += len(row.spec)
    return entries, specs


def _sources(workspace: Workspace, before: Catalogue | None) -> list[CachedSource]:
    """Return every source as last opened; a failed source keeps the time of its last success."""
    now = time.time()
    known = dict(before.sources) if before is not None else {}
    for report in workspace.reports:
        opened = workspace.opened.get(report.name)
        earlier = known.get(report.name)
        source = workspace.config.sources[report.name]
        known[report.name] = CachedSource(
            name=report.name,
            kind=report.kind,
            state=report.state,
            operations=report.operations if opened is not None else earlier.operations if earlier is not None else 0,
            problem=report.problem,
            opened_at=now if opened is not None else earlier.opened_at if earlier is not None else 0.0,
            files=_stamps(workspace, opened.files)
            if opened is not None
            else _files_of_failed(workspace, source, earlier),
            skipped=[(skip.path, skip.reason) for skip in report.skipped][:_MAX_SKIPPED],
            fault=report.fault if report.fault is not None and source.problem is None else "",
            hidden=workspace.hidden_of(report.name),
        )
    return [source for name, source in known.items() if name in workspace.config.sources]


def _stamps(workspace: Workspace, paths: Iterable[str]) -> list[Stamp]:
    """Return the stamps of files.

    A file that changed while the sources were opened gets a stamp that never matches, so that it counts as changed.
    """
    stamps = map(stamp, paths)
    return [(each[0], 0, -1) if workspace.created_at < each[1] <= time.time_ns() else each for each in stamps]


def _files_of_failed(workspace: Workspace, source: Source, earlier: CachedSource | None) -> Sequence[Stamp]:
    """Return the stamps of the files to watch for a failed source: its expected file, and the files it had before."""
    expected = expected_file(source)
    known = [] if earlier is None else [each for each in earlier.files if each[0] != expected]
    return known if expected is None else [*known, *_stamps(workspace, [expected])]


def _write(path: Path, content: bytes) -> Path | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, content, is_private=True)
    except OSError as error:
        _log.info("the catalogue is not cached: %s", error)
        return None
    return path
