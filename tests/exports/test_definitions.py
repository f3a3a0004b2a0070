"""Shared definitions: equal content becomes one definition, different content never does."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from operations.exports.definitions import Hoisted, SharedDefinition, assign_names, closure, hoist
from operations.schema import from_schema

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "integer"}}}


def unfolded(hoisted: Hoisted, depth: int = 8) -> Any:
    """The schema with its references followed, deep enough to distinguish recursive ones."""

    def follow(schema: Any, left: int) -> Any:
        if isinstance(schema, list):
            return [follow(item, left) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            if not left:
                return "…"
            return follow(hoisted.definitions[schema["$ref"]].schema(str), left - 1)
        return {key: follow(value, left) for key, value in schema.items()}

    return follow(hoisted.schema(str), depth)


def test_a_schema_without_definitions_stays_as_it_is() -> None:
    for schema in ({"type": "string"}, True, False):
        hoisted = hoist(schema, "root")
        assert (hoisted.schema(str), hoisted.uses, hoisted.definitions) == (schema, (), {})


def test_hoisted_schemas_can_be_rewritten() -> None:
    hoisted = hoist({"properties": {"a": True, "b": False}, "additionalProperties": False}, "root")
    written = hoisted.schema(str, lambda schema: {"const": schema} if isinstance(schema, bool) else schema)
    assert written == {"properties": {"a": {"const": True}, "b": {"const": False}}, "additionalProperties": False}


def test_equal_definitions_of_two_schemas_have_one_key_under_any_name() -> None:
    one = hoist({"items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "string"}}}, "one")
    two = hoist({"not": {"$ref": "#/$defs/B"}, "$defs": {"B": {"type": "string"}}}, "two")
    assert one.definitions.keys() == two.definitions.keys()


def test_definitions_with_different_references_have_different_keys() -> None:
    def schema(kind: str) -> dict[str, Any]:
        return {
            "$ref": "#/$defs/A",
            "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"type": kind}},
        }

    assert hoist(schema("string"), "x").uses != hoist(schema("integer"), "x").uses


def test_recursion_has_a_key_that_does_not_depend_on_where_it_is_entered() -> None:
    even = {"properties": {"n": {"$ref": "#/$defs/Odd"}}}
    odd = {"properties": {"n": {"$ref": "#/$defs/Even"}}, "title": "odd"}
    one = hoist({"items": {"$ref": "#/$defs/Even"}, "$defs": {"Even": even, "Odd": odd}}, "one")
    two = hoist({"items": {"$ref": "#/$defs/Odd"}, "$defs": {"Odd": odd, "Even": even}}, "two")
    assert one.definitions.keys() == two.definitions.keys()
    assert len(one.definitions) == 2


def test_a_short_cycle_is_not_taken_for_the_beginning_of_a_longer_one() -> None:
    short = {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}}
    long = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"items": {"$ref": "#/$defs/A"}, "title": "b"}},
    }
    assert not hoist(short, "s").definitions.keys() & hoist(long, "l").definitions.keys()


def test_a_schema_that_refers_to_itself_becomes_a_definition_named_after_its_owner() -> None:
    hoisted = hoist({"type": "object", "properties": {"child": {"$ref": "#"}}}, "tree.make")
    (definition,) = hoisted.definitions.values()
    assert hoisted.schema(str) == {"$ref": definition.key}
    assert definition.name == "tree.make"
    assert definition.schema(str)["properties"]["child"] == {"$ref": definition.key}


def test_a_root_that_repeats_a_definition_refers_to_it() -> None:
    hoisted = hoist({**NODE, "$defs": {"Node": NODE}}, "root")
    (definition,) = hoisted.definitions.values()
    assert hoisted.schema(str) == {"$ref": definition.key}
    assert definition.name == "Node"


def test_a_root_can_be_made_a_definition() -> None:
    item = {"type": "object", "properties": {"a": {"type": "string"}}}
    alone = hoist(item, "Item", with_root=True)
    within = hoist({"items": {"$ref": "#/$defs/Item"}, "$defs": {"Item": item}}, "root")
    assert alone.definitions.keys() == within.definitions.keys()
    assert alone.schema(str) == {"$ref": alone.uses[0]}
    assert hoist({**NODE, "$defs": {"Node": NODE}}, "Node", with_root=True).definitions.keys() == set(
        hoist({**NODE, "$defs": {"Node": NODE}}, "Node", with_root=True).uses
    )


def test_definitions_that_nothing_reaches_are_left_out() -> None:
    assert hoist({"type": "string", "$defs": {"Secret": {"type": "null"}}}, "root").definitions == {}


def test_a_reference_in_data_is_data() -> None:
    schema = {"const": {"$ref": "#/$defs/A"}, "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "string"}}}
    hoisted = hoist(schema, "root")
    assert hoisted.schema(str)["const"] == {"$ref": "#/$defs/A"}
    assert hoisted.schema(str)["items"] == {"$ref": hoisted.uses[0]}


def test_the_document_given_is_not_changed() -> None:
    document = {"items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": NODE}}
    before = str(document)
    hoist(document, "root").schema(lambda key: f"#/components/schemas/{key}")
    assert str(document) == before


def test_the_second_content_of_a_name_gets_digits_of_its_hash() -> None:
    user = SharedDefinition("a" * 32, "User", (), {"type": "object"})
    other = SharedDefinition("b" * 32, "User", (), {"type": "string"})
    third = SharedDefinition("b" * 7 + "c" * 25, "User", (), True)
    named = assign_names([user, other, user, third], taken=["Problem"])
    assert named == {user.key: "User", other.key: "User_bbbbbb", third.key: "User_bbbbbbb"}
    assert assign_names([user], taken=["User"]) == {user.key: "User_aaaaaa"}


def test_names_that_imitate_hashes_do_not_stop_the_naming() -> None:
    one, two = SharedDefinition("a" * 32, "User", (), True), SharedDefinition("b" * 32, "User", (), False)
    imitations = [f"User_{'b' * length}" for length in range(6, 33)]
    named = assign_names([one, two], taken=imitations)
    assert len({*named.values(), *imitations}) == len(imitations) + 2


def test_closure_follows_cycles_once() -> None:
    hoisted = hoist({"items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": NODE}}, "root")
    assert closure(hoisted.uses, hoisted.definitions) == list(hoisted.uses)


NAMES = ("A", "B", "C", "D")
REFERENCES = st.sampled_from([*(f"#/$defs/{name}" for name in NAMES), "#"]).map(lambda ref: {"$ref": ref})
LEAVES = st.sampled_from([{"type": "string"}, {"type": "integer"}, {"const": 1}, {"const": True}])
CONTENTS = st.one_of(
    LEAVES,
    REFERENCES.map(lambda ref: {"items": ref}),
    st.tuples(REFERENCES, st.one_of(REFERENCES, LEAVES)).map(lambda two: {"properties": {"x": two[0], "y": two[1]}}),
)
GRAPHS = st.builds(
    lambda root, contents: {**root, "$defs": dict(zip(NAMES, contents, strict=True))},
    CONTENTS,
    st.tuples(*(CONTENTS for _ in NAMES)),
)


@given(GRAPHS, GRAPHS)
def test_equal_keys_mean_equal_schemas(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = hoist(one, "one"), hoist(two, "two")
    for key in first.definitions.keys() & second.definitions.keys():
        left = unfolded(Hoisted(first.definitions[key], (key,), first.definitions), 12)
        right = unfolded(Hoisted(second.definitions[key], (key,), second.definitions), 12)
        assert repr(left) == repr(right)


@given(GRAPHS)
def test_hoisting_preserves_the_meaning_of_a_schema(graph: dict[str, Any]) -> None:
    hoisted = hoist(graph, "root")
    names = assign_names(hoisted.definitions.values())
    assert len(set(names.values())) == len(hoisted.definitions)

    def place(key: str) -> str:
        return f"#/$defs/{names[key]}"

    back = hoisted.schema(place)
    assert set(closure(hoisted.uses, hoisted.definitions)) == hoisted.definitions.keys()
    shared = {names[key]: each.schema(place) for key, each in hoisted.definitions.items()}
    again = hoist({**back, "$defs": shared}, "root")
    assert repr(unfolded(again, 6)) == repr(unfolded(hoisted, 6))
    for value in (1, True, "x", {"x": 1, "y": "z"}, ["x", 1], {"x": {"x": 1}}):
        assert from_schema(graph).check(value) == from_schema({**back, "$defs": shared}).check(value)
