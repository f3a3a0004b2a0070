"""load_config: read a configuration file, its includes and its variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from operations.config.actions import require_trust
from operations.config.documents import ConfigDocument, read_document
from operations.config.problems import ConfigProblem, Key, problems_error
from operations.config.settings import AccessRule, Config, FileSettings, HubSettings, MCPSettings, ServeSettings, Source
from operations.config.trust import FILE_NAME, PROJECT_FILE, search_config
from operations.config.validation import (
    KINDS,
    Checker,
    SourceTable,
    check_hub,
    check_serve,
    check_transport,
    choose_kind,
    source_problem,
)
from operations.config.variables import (
    UnsetVariable,
    UnsupportedVariable,
    VariableProblem,
    Variables,
    read_variable_file,
    substitute_tree,
)
from operations.errors import CallError, ErrorCode

_SOURCES = "sources"


def load_config(path: Path | str | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file; `environ` replaces the process environment.

    The file is `operations.toml`, a `pyproject.toml` with `[tool.operations]`, or editors' JSON with `mcpServers` or
    `servers`. A program that passes a path trusts the file. Without a path, the nearest file is used if the user trusts
    it; otherwise this raises `ACCESS_DENIED`. An invalid file raises `VALIDATION_ERROR`: the message has one line per
    problem, `file:line: message`, and `details["errors"]` has the file, line, key and message of each problem.
    """
    if path is not None:
        return _read(Path(path), environ)
    found = search_config()
    if found.refused:
        raise CallError(ErrorCode.ACCESS_DENIED, found.refused)
    if found.path is None:
        message = f"no {FILE_NAME} here or in a parent directory: run `ops init` to create one"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    config = _read(found.path, environ)
    require_trust(config, environ)
    return config


def load_draft(path: Path, text: str) -> Config:
    """Return the configuration that a file would have if it contained `text`; the file is not changed."""
    return _read(path, None, text)


def _read(path: Path, environ: Mapping[str, str] | None, draft: str | None = None) -> Config:
    if path.is_dir():
        path = path / FILE_NAME
    reading = _ConfigReader(os.environ if environ is None else environ, draft)
    reading.read(path.absolute(), None)
    if reading.problems:
        raise problems_error(reading.problems)
    return reading.config(path.absolute())


class _ConfigReader:
    """The state of reading one file and its includes."""

    def __init__(self, environ: Mapping[str, str], draft: str | None = None) -> None:
        self.problems: list[ConfigProblem] = []
        self._environ = environ
        self._draft = draft
        """Text to use for the first file instead of reading it."""
        self._file_variables: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._tables: dict[str, dict[str, Any]] = {"access": {}, "transports": {}}
        self._interceptors: list[Any] = []
        self._hub: HubSettings | None = None
        self._serve: ServeSettings | None = None
        self._policy: Any = None
        self._written: dict[str, Any] = {}
        self._files: dict[Path, None] = {}
        self._used: dict[str, str] = {}
        self._unset: set[str] = set()
        self._unusable: dict[str, str] = {}

    def config(self, path: Path) -> Config:
        """Return the whole configuration."""
        return Config(
            path=path,
            sources=self._sources,
            access=self._tables["access"],
            transports=self._tables["transports"],
            interceptors=tuple(self._interceptors),
            hub=self._hub,
            serve=self._serve,
            policy=self._policy,
            files=tuple(self._files),
            variables=self._used,
            file_variables={name: value for name, value in self._used.items() if name not in self._environ},
            unset_variables=frozenset(self._unset),
            unusable=self._unusable,
            written=self._written,
        )

    def read(self, path: Path, includer: tuple[Checker, Key] | None) -> None:
        """Read a file. If an included file is missing, report the problem in the file that includes it."""
        if path in self._files:
            if includer is not None:
                includer[0].report(includer[1], f"{path} is already included")
            return
        if includer is not None and not path.exists():
            includer[0].report(includer[1], f"file not found: {path}")
            return
        document = read_document(path, self._draft if includer is None else None)
        self._files[path] = None
        if path.suffix == ".json":
            self._read_editor(document)
        else:
            self._read_file(document)

    def _read_file(self, document: ConfigDocument) -> None:
        checker = Checker(document, self.problems)
        tree: Any = document.tree
        key: Key = ()
        if document.path.name == PROJECT_FILE:
            key = ("tool", "operations")
            tree = tree.get("tool", {}).get("operations")
            if not isinstance(tree, dict):
                checker.report((), "missing table [tool.operations]")
                return
        self._read_env_files(checker, tree.get("env_file"), (*key, "env_file"))
        plain = {name: value for name, value in tree.items() if name not in (_SOURCES, "env_file")}
        filled = self._substitute_tables(checker, plain, key)
        given = {"env_file": tree["env_file"]} if "env_file" in tree else {}
        settings = checker.read(FileSettings, {**filled, **given}, key)
        if settings is not None:
            self._merge(checker, settings, plain, key)
            self._take_interceptors(checker, filled, plain, key)
        sources = tree.get(_SOURCES, {})
        if not isinstance(sources, Mapping):
            checker.report((*key, _SOURCES), "expected a table of sources by name")
            return
        for name, table in sources.items():
            self._read_source(checker, SourceTable(name, (*key, _SOURCES, name), table, document.path.parent))
        for number, included in enumerate(settings.include if settings is not None else ()):
            location = (*key, "include", number)
            self.read(document.path.parent / Path(included).expanduser(), (checker, location))

    def _merge(self, checker: Checker, settings: FileSettings, written: Mapping[str, Any], key: Key) -> None:
        """Merge the tables of a file, except its sources; report tables that two files define."""
        access = {
            pattern: rule if isinstance(rule, AccessRule) else AccessRule(scopes=rule)
            for pattern, rule in settings.access.items()
        }
        for name, found in (("access", access), ("transports", settings.transports)):
            for entry, value in found.items():
                if entry in self._tables[name]:
                    checker.report((*key, name, entry), "already defined in another file")
                self._tables[name][entry] = value
            self._written.setdefault(name, {}).update(written.get(name, {}))
        for entry, transport in settings.transports.items():
            check_transport(checker, transport, (*key, "transports", entry))
        self._merge_serving(checker, settings, written, key)
        self._policy = self._policy or settings.policy

    def _merge_serving(self, checker: Checker, settings: FileSettings, written: Mapping[str, Any], key: Key) -> None:
        """Merge the tables `hub` and `serve` of a file."""
        if settings.hub is not None:
            if self._hub is not None:
                checker.report((*key, "hub"), "already defined in another file")
            self._hub = settings.hub
            check_hub(checker, settings.hub, (*key, "hub"))
        if settings.serve is not None:
            if self._serve is not None:
                checker.report((*key, "serve"), "already defined in another file")
            self._serve = settings.serve
            check_serve(checker, settings.serve, (*key, "serve"))
        for name, used in (("hub", settings.hub), ("serve", settings.serve)):
            # A table with an unset variable is not in `settings`; trust must not depend on the variable.
            if name in written and (used is not None or name not in self._written):
                self._written[name] = written[name]

    def _take_interceptors(
        self, checker: Checker, filled: Mapping[str, Any], written: Mapping[str, Any], key: Key
    ) -> None:
        """Add the interceptors of a file, after the interceptors of earlier files."""
        if filled.get("interceptors"):
            from operations.config.interceptors import read_interceptors  # imported lazily: few files have interceptors

            self._interceptors += read_interceptors(checker, filled["interceptors"], (*key, "interceptors"))
            self._written.setdefault("interceptors", []).extend(written["interceptors"])

    def _read_editor(self, document: ConfigDocument) -> None:
        from operations.config.editor_files import editor_servers, editor_variables  # most files are TOML

        checker = Checker(document, self.problems)
        special = editor_variables(document.path)
        for server in editor_servers(document):
            self._read_source(checker, server, special)

    def _read_source(self, checker: Checker, given: SourceTable, special: Mapping[str, str] | None = None) -> None:
        key = given.key
        kind = choose_kind(checker, given.table, key)
        if kind is None or given.table.get("disabled") is True:
            return
        filled, missing = self._substitute(checker, dict(given.table), key, special)
        # Settings with unset variables are not validated: the source keeps the problem and is not opened.
        skipped = {location[len(key)] for location in missing} - KINDS.keys()
        settings = checker.read(kind, {name: value for name, value in filled.items() if name not in skipped}, key)
        if settings is None or settings.disabled:
            return
        other = self._sources.get(given.name)
        if other is not None:
            checker.report(key, f"duplicate source name, first defined in {other.file}:{other.line}")
            return
        source = Source(
            name=given.name,
            settings=settings,
            directory=given.directory,
            file=checker.document.path,
            locate=partial(checker.document.line, key),
            written=given.table,
            problem=given.problem or "; ".join(map(str, missing.values())) or None,
        )
        inconsistency = source_problem(source)
        if inconsistency is not None:
            checker.report(key, inconsistency)
        if isinstance(settings, MCPSettings) and (path := settings.env_file_path(given.directory)) is not None:
            self._files[path] = None
        self._sources[given.name] = source

    def _substitute(
        self, checker: Checker, tree: Any, key: Key, special: Mapping[str, str] | None = None
    ) -> tuple[Any, dict[Key, ConfigProblem]]:
        """Return a tree with its variables replaced, and by key the problems of variables without a value.

        Report other problems.
        """
        missing: dict[Key, ConfigProblem] = {}
        if "${" not in checker.document.text:
            return tree, missing
        variables = Variables({**self._file_variables, **self._environ}, special=special)

        def report(location: Key, problem: VariableProblem) -> None:
            found = checker.problem(location, problem.message, mention=problem.mention)
            if isinstance(problem, (UnsetVariable, UnsupportedVariable)):
                missing[location] = found
            else:
                self.problems.append(found)

        filled = substitute_tree(tree, variables, key, report)
        self._used |= variables.used
        self._unset |= variables.missing
        return filled, missing

    def _substitute_tables(self, checker: Checker, tables: dict[str, Any], key: Key) -> dict[str, Any]:
        """Return the tables other than sources, with their variables replaced.

        A hub, server or transport with an unset variable is left out and recorded in `unusable`. In any other table,
        an unset variable is a problem.
        """
        filled: dict[str, Any]
        filled, missing = self._substitute(checker, tables, key)
        for location, problem in missing.items():
            table, *entry = location[len(key) :]
            if table in ("hub", "serve"):
                filled.pop(table, None)
                self._unusable.setdefault(table, str(problem))
            elif table == "transports" and entry and isinstance(filled.get("transports"), dict):
                filled["transports"].pop(entry[0], None)
                self._unusable.setdefault(f"transports.{entry[0]}", str(problem))
            else:
                filled.pop(str(table), None)
                self.problems.append(problem)
        return filled

    def _read_env_files(self, checker: Checker, given: Any, key: Key) -> None:
        for number, name in enumerate([given] if isinstance(given, str) else given if isinstance(given, list) else ()):
            location = key if isinstance(given, str) else (*key, number)
            filled, missing = self._substitute(checker, name, location)
            self.problems += missing.values()
            if missing or not isinstance(filled, str):
                continue
            path = checker.document.path.parent / Path(filled).expanduser()
            file = read_variable_file(path)
            if file.unreadable is not None:
                checker.report(location, file.unreadable)
                continue
            self._files[path] = None
            self.problems += [ConfigProblem(path, line, "", "expected NAME=value") for line in file.bad_lines]
            self._file_variables |= file.values
