"""Peers of the schema benchmark: one function each, which returns a callable or raises `Missing`."""

from __future__ import annotations

import functools
import json
import operator
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.npm import npm_package

Verb = Callable[[Any], Any]


class Missing(Exception):  # noqa: N818 - not an error: the peer's row shows the reason
    """The reason why a peer is unavailable."""


def fastjsonschema(schema: dict[str, Any]) -> Verb:
    """Return fastjsonschema's generated validator. Like all peers, it checks no formats."""
    try:
        import fastjsonschema as peer
    except ImportError as error:
        raise Missing("fastjsonschema is not installed") from error
    local = json.loads(json.dumps(schema).replace("#/$defs/", "#/definitions/").replace('"$defs"', '"definitions"'))
    local["$schema"] = "http://json-schema.org/draft-07/schema#"
    compiled: Verb = peer.compile(local, use_formats=False)
    return compiled


def pydantic(schema: dict[str, Any]) -> Verb:
    """Return the validator of pydantic models built from the schema."""
    try:
        import pydantic as peer
    except ImportError as error:
        raise Missing("pydantic is not installed") from error
    return _Models(peer, schema).validator()


class _Models:
    """Builder of one pydantic type per schema."""

    def __init__(self, peer: Any, root: dict[str, Any]) -> None:
        self._peer = peer
        self._root = root
        self._made: dict[int, Any] = {}

    def validator(self) -> Verb:
        adapter = self._peer.TypeAdapter(self._type(self._root))
        return lambda value: adapter.validate_python(value)

    def _type(self, schema: dict[str, Any]) -> Any:
        from typing import Literal

        if "$ref" in schema:
            target = self._root if schema["$ref"] == "#" else self._root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
            return self._type(target)
        if "anyOf" in schema:
            return functools.reduce(operator.or_, (self._type(branch) or type(None) for branch in schema["anyOf"]))
        if "enum" in schema or "const" in schema:
            return Literal[tuple(schema.get("enum", [schema.get("const")]))]
        kind = schema["type"]
        if isinstance(kind, list):
            return self._type({**schema, "type": kind[0]}) | None
        simple = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
        if kind in simple:
            return simple[kind]
        return list[self._type(schema["items"])] if kind == "array" else self._model(schema)  # type: ignore[misc]

    def _model(self, schema: dict[str, Any]) -> Any:
        if id(schema) not in self._made:
            name = f"Model{len(self._made)}"
            self._made[id(schema)] = name  # a recursive field refers to the model by its name
            fields: dict[str, Any] = {
                key: (self._type(item), ... if key in schema["required"] else None)
                for key, item in schema["properties"].items()
            }
            model = self._peer.create_model(name, **fields)
            self._made[id(schema)] = model
            model.model_rebuild(_types_namespace={name: model})
        return self._made[id(schema)]


def install_node(package: str, version: str) -> Path:
    """Return the directory of an npm package, installing it if missing."""
    folder = npm_package(package, version)
    if folder is None:
        raise Missing(f"{package} could not be installed")
    return folder


def typebox(cases: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the microseconds of TypeBox's `Value.Cast` in Node for each case: clean, excess, bad leaf."""
    install_node("@sinclair/typebox", "0.34.52")
    node = shutil.which("node")
    if node is None:
        raise Missing("node is not installed")
    script = Path(__file__).with_name("typebox.cjs")
    done = subprocess.run([node, str(script)], input=json.dumps(cases), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"the Node script failed: {done.stderr.strip().splitlines()[-1:]}")
    rows: list[dict[str, float]] = json.loads(done.stdout)
    return rows
