"""load_config: the file, what it includes and its variables, read and checked as one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.config.checking import Checker
from operations.config.documents import Document, read_document
from operations.config.editors import editor_servers, editor_variables
from operations.config.finding import FILE_NAME, PROJECT_FILE, find_config
from operations.config.models import Config, Source
from operations.config.problems import ConfigProblem, Key, problems_error
from operations.config.settings import (
    AccessRule,
    FileSettings,
    HubSettings,
    JWTSettings,
    SigningSettings,
    TransportSettings,
)
from operations.config.sources import SourceTable, choose_kind, explain_misfit
from operations.config.variables import UnsupportedVariable, VariableProblem, Variables, fill_tree, read_variable_file
from operations.errors import CallError, ErrorCode
from operations.pubsub import check_address

_SOURCES = "sources"
_KEY_BYTES = 32
_KEY = re.compile(rf"(?:[0-9a-fA-F]{{2}}){{{_KEY_BYTES},}}")


def load_config(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in a file (the nearest one if not given); `environ` in place of the process environment.

    The file is `operations.toml`, a `pyproject.toml` with `[tool.operations]`, or editors' JSON with `mcpServers` or
    `servers`. Raises `VALIDATION_ERROR`; its message has one line for each problem, `file:line: what is wrong`, and its
    `details["errors"]` the same as data.
    """
    found = find_config() if path is None else Path(path)
    if found is None:
        message = f"there is no {FILE_NAME} here or in a folder above; `ops init` writes one"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    if found.is_dir():
        found = found / FILE_NAME
    reading = _Reading(os.environ if environ is None else environ)
    reading.read(found.absolute(), None)
    if reading.problems:
        raise problems_error(reading.problems)
    return reading.config(found.absolute())


class _Reading:
    """What has been read so far, of one file and those it includes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[ConfigProblem] = []
        self._environ = environ
        self._file_variables: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._tables: dict[str, dict[str, Any]] = {"access": {}, "transports": {}}
        self._hub: HubSettings | None = None
        self._policy: Any = None
        self._written: dict[str, Any] = {}
        self._files: dict[Path, None] = {}
        self._used: dict[str, str] = {}

    def config(self, path: Path) -> Config:
        """Everything as one configuration."""
        return Config(
            path=path,
            sources=self._sources,
            access=self._tables["access"],
            transports=self._tables["transports"],
            hub=self._hub,
            policy=self._policy,
            files=tuple(self._files),
            variables=self._used,
            written=self._written,
        )

    def read(self, path: Path, includer: tuple[Checker, Key] | None) -> None:
        """Read a file; a problem with reaching it belongs to the file that includes it."""
        if path in self._files:
            if includer is not None:
                includer[0].report(includer[1], f"{path} is included already")
            return
        if includer is not None and not path.exists():
            includer[0].report(includer[1], f"there is no file {path}")
            return
        document = read_document(path)
        self._files[path] = None
        if path.suffix == ".json":
            self._read_editor(document)
        else:
            self._read_own(document)

    def _read_own(self, document: Document) -> None:
        checker = Checker(document, self.problems)
        tree: Any = document.tree
        key: Key = ()
        if document.path.name == PROJECT_FILE:
            key = ("tool", "operations")
            tree = tree.get("tool", {}).get("operations")
            if not isinstance(tree, dict):
                checker.report((), "there is no [tool.operations] in it")
                return
        self._read_env_files(checker, tree.get("env_file"), (*key, "env_file"))
        plain = {name: value for name, value in tree.items() if name not in (_SOURCES, "env_file")}
        variables = self._variables()
        filled = self._fill(checker, plain, variables, key)
        given = {"env_file": tree["env_file"]} if "env_file" in tree else {}
        settings = checker.read(FileSettings, {**filled, **given}, key)
        if settings is not None:
            self._take(checker, settings, plain, key)
        sources = tree.get(_SOURCES, {})
        if not isinstance(sources, Mapping):
            checker.report((*key, _SOURCES), "a table of sources by name is wanted")
            return
        for name, table in sources.items():
            self._read_source(checker, SourceTable(name, (*key, _SOURCES, name), table, document.path.parent))
        for number, included in enumerate(settings.include if settings is not None else ()):
            place = (*key, "include", number)
            self.read(document.path.parent / Path(included).expanduser(), (checker, place))

    def _take(self, checker: Checker, settings: FileSettings, written: Mapping[str, Any], key: Key) -> None:
        """Keep what a file says beside its sources; what two files say is a problem."""
        access = {
            pattern: rule if isinstance(rule, AccessRule) else AccessRule(scopes=rule)
            for pattern, rule in settings.access.items()
        }
        for name, found in (("access", access), ("transports", settings.transports)):
            for entry, value in found.items():
                if entry in self._tables[name]:
                    checker.report((*key, name, entry), "another file has it already")
                self._tables[name][entry] = value
            self._written.setdefault(name, {}).update(written.get(name, {}))
        for entry, transport in settings.transports.items():
            _check_transport(checker, transport, (*key, "transports", entry, "url"))
        if settings.hub is not None:
            if self._hub is not None:
                checker.report((*key, "hub"), "another file has it already")
            self._hub = settings.hub
            self._written["hub"] = written["hub"]
            _check_hub(checker, settings.hub, (*key, "hub"))
        self._policy = self._policy or settings.policy

    def _read_editor(self, document: Document) -> None:
        checker = Checker(document, self.problems)
        special = editor_variables(document.path)
        for server in editor_servers(document):
            self._read_source(checker, server, special)

    def _read_source(self, checker: Checker, given: SourceTable, special: Mapping[str, str] | None = None) -> None:
        key = given.key
        kind = choose_kind(checker, given.table, key)
        if kind is None or given.table.get("disabled") is True:
            return
        unsupported: list[str] = []
        filled = self._fill(checker, dict(given.table), self._variables(special), key, unsupported)
        settings = checker.read(kind, filled, key)
        if settings is None or settings.disabled:
            return
        other = self._sources.get(given.name)
        if other is not None:
            checker.report(key, f"there is a source of this name in {other.file}:{other.line} already")
            return
        source = Source(
            name=given.name,
            settings=settings,
            folder=given.folder,
            file=checker.document.path,
            line=checker.document.line(key),
            written=given.table,
            problem=given.problem or (unsupported[0] if unsupported else None),
        )
        misfit = explain_misfit(source)
        if misfit is not None:
            checker.report(key, misfit)
        self._sources[given.name] = source

    def _fill(
        self, checker: Checker, tree: Any, variables: Variables, key: Key, unsupported: list[str] | None = None
    ) -> Any:
        def report(place: Key, problem: VariableProblem) -> None:
            if unsupported is not None and isinstance(problem, UnsupportedVariable):
                unsupported.append(problem.message)
            else:
                checker.report(place, problem.message, mention=problem.mention)

        filled = fill_tree(tree, variables, key, report)
        self._used |= variables.used
        return filled

    def _variables(self, special: Mapping[str, str] | None = None) -> Variables:
        return Variables({**self._file_variables, **self._environ}, special=special)

    def _read_env_files(self, checker: Checker, given: Any, key: Key) -> None:
        for number, name in enumerate([given] if isinstance(given, str) else given if isinstance(given, list) else ()):
            place = key if isinstance(given, str) else (*key, number)
            filled = self._fill(checker, name, self._variables(), place)
            if not isinstance(filled, str):
                continue
            path = checker.document.path.parent / Path(filled).expanduser()
            file = read_variable_file(path)
            if file.unreadable is not None:
                checker.report(place, file.unreadable)
                continue
            self._files[path] = None
            self.problems += [ConfigProblem(path, line, "", "a line is NAME=value") for line in file.bad_lines]
            self._file_variables |= file.values


def _check_transport(checker: Checker, transport: TransportSettings, key: Key) -> None:
    try:
        check_address(transport.url)
    except CallError as error:
        checker.report(key, error.message)
    if transport.signing is not None:
        if transport.url.partition(":")[0].lower() in ("ws", "wss", "memory"):
            checker.report((*key, "signing"), "only Redis and NATS need signatures: a hub knows who is there")
        _check_signing(checker, transport.signing, (*key, "signing"))


def _check_signing(checker: Checker, signing: SigningSettings, key: Key) -> None:
    """What stands where is told, never what it is."""
    accepted = [("accepted_secrets", text) for text in signing.accepted_secrets]
    for name, text in (("secret", signing.secret), *accepted, ("key", signing.key)):
        if text is not None and _KEY.fullmatch(text) is None:
            message = (
                f"at least {_KEY_BYTES} random bytes in hexadecimal digits are wanted: openssl rand -hex {_KEY_BYTES}"
            )
            checker.report((*key, name), message)
    if signing.secret is None and (signing.token is None or signing.key is None):
        checker.report(key, "a worker has a secret, a caller a token and its key: one of them is wanted")
    if accepted and signing.secret is None:
        checker.report(key, "accepted_secrets stand beside the secret that signs: it is wanted too")
    if signing.jwt is not None:
        _check_jwt(checker, signing.jwt, (*key, "jwt"))


def _check_jwt(checker: Checker, jwt: JWTSettings, key: Key) -> None:
    if (jwt.key is None) == (jwt.key_file is None):
        checker.report(key, "one of key and key_file is wanted")


def _check_hub(checker: Checker, hub: HubSettings, key: Key) -> None:
    if hub.jwt is not None:
        _check_jwt(checker, hub.jwt, (*key, "jwt"))
    tokens = [token.token for token in hub.tokens]
    for number, token in enumerate(tokens):
        if token in tokens[:number]:
            checker.report((*key, "tokens", number), "the token is that of another entry as well")
