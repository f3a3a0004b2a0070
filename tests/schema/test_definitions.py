"""Definitions: schemas of one document share converted components, and are what they would be alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.schema import Schema, deferred_schema
from operations.schema.casting.closed_form import Closer
from operations.schema.casting.nodes import Nodes
from operations.schema.checking.compiling import compiled_form
from operations.schema.dialects.conversion import convert
from operations.schema.dialects.definitions import Definitions, Revise
from operations.schema.dialects.plain import Conversion
from operations.schema.dialects.read_write_only import lift_required
from operations.schema.dialects.schema_repairs import SchemaRepairs
from operations.schema.dialects.traversal import Definition, definitions_of, native_form
from tests.schema.strategies import VALUES

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
COMPONENTS: dict[str, Any] = {
    "User": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "boss": {"$ref": "#/components/schemas/User"}},
    },
    "Team": {"type": "object", "properties": {"lead": {"$ref": "#/components/schemas/User"}}, "required": ["lead"]},
    "Closed": CLOSED,
    "Joined": {"allOf": [{"$ref": "#/components/schemas/Closed"}, {"required": ["b"], "properties": {"b": {}}}]},
    "Wider": {"allOf": [{"$ref": "#/components/schemas/Joined"}, {"required": ["c"], "properties": {"c": {}}}]},
    "Secret": {"type": "string", "writeOnly": True},
    "Login": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "password": {"$ref": "#/components/schemas/Secret"}},
        "required": ["name", "password"],
    },
    "Shape": {"oneOf": [{"$ref": "#/components/schemas/Circle"}, {"$ref": "#/components/schemas/Box"}]},
    "Circle": {"allOf": [{"$ref": "#/components/schemas/Shape"}, {"required": ["radius"]}]},
    "Box": {"type": "object", "required": ["width"], "properties": {"width": {"type": "number"}}},
    "Page": {
        "type": "object",
        "properties": {"size": {"type": "integer", "default": 10}, "lead": {"$ref": "#/components/schemas/User"}},
    },
    "Option": {"anyOf": [{"$ref": "#/components/schemas/Page"}, {"$ref": "#/components/schemas/Box"}]},
    "Pages": {"allOf": [{"$ref": "#/components/schemas/Page"}, {"properties": {"next": {"default": {}}}}]},
    "Code": {"type": "string", "pattern": "/^[a-z]+$/"},
    "Unique": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/components/schemas/Code"}},
}


def reviser() -> Revise:
    repairs = SchemaRepairs()

    def revise(document: dict[str, Any], names: Collection[str]) -> None:
        lift_required(document, "writeOnly", names)
        repairs.repair(document, names)

    return revise


def shared(make: Callable[[], Revise] = reviser) -> Definitions:
    return Definitions("2020-12", sections=["components"], reviser=make)


def source(*names: str) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return {"type": "array", "prefixItems": references, "components": {"schemas": COMPONENTS}}


def alone(*names: str) -> Any:
    document = convert(source(*names), "2020-12").document
    assert isinstance(document, dict)
    reviser()(document, document.get("$defs", ()))
    return document


@given(st.lists(st.lists(st.sampled_from(sorted(COMPONENTS)), min_size=1, max_size=3), min_size=1, max_size=6), VALUES)
def test_shared_schemas_are_those_of_each_document_alone(uses: list[list[str]], value: Any) -> None:
    definitions = shared()
    for names in uses:
        schema = deferred_schema(lambda names=names: source(*names), definitions)  # type: ignore[misc]
        expected = Schema(alone(*names))
        assert schema.document == alone(*names)
        assert schema.errors([value] * len(names)) == expected.errors([value] * len(names))
        assert schema.normalise([value]) == expected.normalise([value])


def closed(schema: Any) -> dict[str, Definition]:
    """The closed form of a conversion or of a converted document."""
    document, forms = (schema.document, schema.shared) if isinstance(schema, Conversion) else (schema, {})
    return Closer(Nodes(document), definitions_of(document, forms)).form()


@given(st.lists(st.sampled_from(sorted(COMPONENTS)), min_size=1, max_size=6), VALUES)
def test_shared_closed_forms_accept_what_those_of_each_document_alone_accept(uses: list[str], value: Any) -> None:
    definitions = shared()
    for name in uses:
        conversion = definitions.convert(source(name))
        validator, expected = (compiled_form(native_form(form)) for form in (closed(conversion), closed(alone(name))))
        assert validator is not None
        assert expected is not None
        for each in (value, {"size": 10, **value} if isinstance(value, dict) else {"size": 10}):
            assert validator.is_valid([each]) is expected.is_valid([each])


def test_a_closed_form_is_written_once() -> None:
    definitions = shared()
    forms = []
    for names in (("Team",), ("User", "Team")):
        conversion = definitions.convert(source(*names))
        forms.append(closed(conversion))
    assert forms[0]["#/$defs/closed:User"] is forms[1]["#/$defs/closed:User"]


def test_a_definition_without_defaults_has_the_same_closed_form_whether_defaults_are_required_or_not() -> None:
    text = {"type": "string"}
    branch = {"type": "object", "properties": {"size": {"default": 1}, "leaf": {"$ref": "#/$defs/leaf"}}}
    leaf = {"type": "object", "properties": {"name": text}}
    union = {"anyOf": [{"$ref": "#/$defs/branch"}, {"$ref": "#/$defs/leaf"}], "$defs": {"branch": branch, "leaf": leaf}}
    forms = closed(union)
    assert {pointer[8:] for pointer in forms} - {""} == {"closed:branch", "closed-kept:branch", "closed:leaf"}


def test_an_unchanged_schema_that_refers_to_a_closed_document_makes_the_closed_form_reject_every_value() -> None:
    document = {"type": "object", "properties": {"name": {"type": "string"}, "other": {"not": {"$ref": "#"}}}}
    assert closed(document)["#"].schema is False
    schema = Schema(document)
    for _ in range(20):  # the first values are cast without the closed form
        assert schema.normalise({"name": "a", "other": 5, "more": 1}) == ({"name": "a", "other": 5}, ())


def test_schemas_with_the_same_document_share_what_they_compile() -> None:
    definitions = shared()
    first, second = (deferred_schema(lambda: source("Team"), definitions) for _ in range(2))
    other = deferred_schema(lambda: source("Box"), definitions)
    for schema in (first, second):
        assert schema.normalise([{"lead": {"id": "1"}}])[0] == [{"lead": {"id": 1}}]
    assert not other.check([{"lead": {}}])
    assert second.document == first.document
    assert second._validator is first._validator
    assert second._caster is first._caster
    assert other._validator is not first._validator


def test_a_component_is_converted_once() -> None:
    definitions = shared()
    team, user = definitions.convert(source("Team")), definitions.convert(source("User", "Team"))
    assert isinstance(team.document, dict)
    assert isinstance(user.document, dict)
    assert team.document["$defs"]["User"] is user.document["$defs"]["User"]


def test_later_schemas_leave_the_definitions_of_earlier_ones_unchanged() -> None:
    definitions = shared()
    documents = []
    for name in COMPONENTS:
        document = definitions.convert(source(name)).document
        documents.append((document, deepcopy(document)))
    assert all(document == before for document, before in documents)


def test_a_schema_that_is_converted_alone_leaves_the_names_free() -> None:
    definitions = shared()
    unshared = {**source("Team"), "contains": {"$ref": "#/other"}, "other": {"type": "array"}}
    assert not definitions.convert(unshared).shared
    document = definitions.convert(source("Team")).document
    assert isinstance(document, dict)
    assert document["$defs"].keys() == {"Team", "User"}


def test_only_reachable_definitions_are_in_a_document() -> None:
    definitions = shared()
    definitions.convert(source("Team", "Login"))
    document = definitions.convert(source("Secret")).document
    assert isinstance(document, dict)
    assert document["$defs"].keys() == {"Secret"}


@pytest.mark.parametrize(("name", "recursive"), [("User", True), ("Team", True), ("Login", False), ("Secret", False)])
def test_recursion_is_that_of_the_reachable_definitions(name: str, recursive: bool) -> None:
    definitions = shared()
    definitions.convert(source("User"))
    assert definitions.convert(source(name)).recursive is recursive


def test_a_reference_into_the_schema_itself_is_not_shared() -> None:
    definitions = shared()
    own = {"type": "object", "properties": {"next": {"$ref": "#"}, "size": {"$ref": "#/properties/width"}}}
    for kind in ("integer", "string"):
        schema = {**own, "properties": {**own["properties"], "width": {"type": kind}}, "components": {}}  # type: ignore[dict-item]
        checked = deferred_schema(lambda schema=schema: schema, definitions)  # type: ignore[misc]
        assert checked.check({"next": {"size": 1}}) is (kind == "integer")


def test_names_do_not_depend_on_the_order_of_use() -> None:
    document = {
        "components": {
            "schemas": {"User": {"type": "integer"}},
            "parameters": {"User": {"schema": {"type": "string"}}, "Team": {"schema": {"type": "boolean"}}},
        }
    }
    references = [
        "#/components/parameters/Team/schema",
        "#/components/schemas/User",
        "#/components/parameters/User/schema",
    ]
    names = []
    for order in (references, references[::-1]):
        definitions = shared()
        made = {each: definitions.convert({"$ref": each, **document}).document for each in order}
        names.append({each: converted["$ref"] for each, converted in made.items() if isinstance(converted, dict)})
    assert names[0] == names[1]
    assert names[0]["#/components/schemas/User"] == "#/$defs/User"
