"""DocumentSchemas: the schemas of one document's operations, which share the definitions of its components."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from operations.schema import Schema, deferred_schema
from operations.schema.dialects.definitions import Definitions, Revise
from operations.schema.dialects.read_write_only import OneWay, lift_required
from operations.schema.dialects.schema_repairs import SchemaRepairs
from operations.schema.dialects.traversal import schemas_in
from operations.sources.openapi.documents import Documents

_SECTIONS = ("components", "definitions", "paths", "parameters", "responses", "webhooks")
Write = Callable[[], Any]


class DocumentSchemas:
    """Makes the schemas of operations. `write`, called on first use, returns the JSON Schema document of a schema."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        document = documents.root.value
        old = "swagger" in document or str(document.get("openapi")).startswith("3.0")
        self._dialect = "openapi-3.0" if old else "2020-12"

    def input(self, write: Write) -> Schema:
        """Return the schema of an input. Read-only properties are not required; unsatisfiable parts are repaired."""
        return deferred_schema(write, self._inputs)

    def body(self, schema: Any) -> Schema:
        """Return the schema of a request body in one media type."""
        return deferred_schema(lambda: schema, self._bodies)

    def output(self, write: Write) -> Schema:
        """Return the schema of a result. Write-only properties are not required; unsatisfiable parts are repaired."""
        return deferred_schema(write, self._outputs)

    def own(self, write: Write) -> Schema:
        """Return a schema of a document that another registry serves."""
        return deferred_schema(write, self._own)

    @cached_property
    def _inputs(self) -> Definitions:
        return self._definitions(self._dialect, lambda: _revision("readOnly", root=False))

    @cached_property
    def _bodies(self) -> Definitions:
        return self._definitions(self._dialect, lambda: _revision("readOnly", root=True))

    @cached_property
    def _outputs(self) -> Definitions:
        return self._definitions(self._dialect, lambda: _revision("writeOnly", root=True))

    @cached_property
    def _own(self) -> Definitions:
        return self._definitions("2020-12", lambda: _drop_duplicates)

    def _definitions(self, dialect: str, reviser: Callable[[], Revise]) -> Definitions:
        documents = self._documents
        sections = self._sections.keys() - {"$id"}
        return Definitions(
            dialect,
            documents.load,
            sections=sections,
            files=documents,
            reviser=reviser,
            complete=self._beside_document,
        )

    def _beside_document(self, schema: Any) -> Any:
        """Return a schema together with the parts of the document that it may refer to."""
        if not isinstance(schema, Mapping):
            return schema
        if len(self._documents) > 1 and "$ref" in schema:
            schema = {"allOf": [schema]}
        return {**schema, **self._sections}

    @cached_property
    def _sections(self) -> dict[str, Any]:
        document = self._documents.root.value
        sections = {key: document[key] for key in _SECTIONS if isinstance(document.get(key), Mapping)}
        # References to other files are relative to the document's address.
        return {**sections, "$id": self._documents.root.address} if len(self._documents) > 1 else sections


def _revision(keyword: OneWay, *, root: bool) -> Revise:
    repairs = SchemaRepairs()
    marked = False

    def revise(document: dict[str, Any], fresh: Collection[str]) -> None:
        nonlocal marked
        marked = marked or any(node.get(keyword) is True for node in schemas_in(document, fresh))
        if marked:
            lift_required(document, keyword, fresh, root=root)
        repairs.repair(document, fresh)

    return revise


def _drop_duplicates(document: dict[str, Any], fresh: Collection[str]) -> None:
    """Remove old keywords beside the new keywords that replace them; documents have both to support older tools."""
    for node in schemas_in(document, fresh):
        if node.get("contentEncoding") == "base64" and node.get("format") == "byte":
            del node["format"]
