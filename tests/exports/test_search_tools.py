from __future__ import annotations

import json
from typing import Any

from operations import AccessControl, Identity, OperationRegistry
from operations.exports.search_tools import CALL, DESCRIBE, SEARCH, SearchTools, compact_listing
from operations.exports.signatures import describe, signature
from operations.testing import stub_operation
from tests.documents import github
from tests.exports.provider_rules import problems_of_schema

ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "The title.\nMore."},
        "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}},
        "state": {"enum": ["open", "closed"], "default": "open"},
        "owner": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "extra": {},
    },
    "required": ["title"],
    "$defs": {
        "label": {"type": "object", "properties": {"name": {"type": "string"}, "sub": {"$ref": "#/$defs/label"}}}
    },
}


def tools(identity: Identity | None = None) -> SearchTools:
    registry = OperationRegistry(
        [
            stub_operation(
                "git.issues/create", title="Create an issue", input_schema=ISSUE, returns=lambda input: input
            ),
            stub_operation("git.issues/list", title="List issues", output_schema={"type": "array"}),
            stub_operation("git.admin", title="Delete issues", access_control=AccessControl(required_scopes=["admin"])),
        ]
    )
    return SearchTools(registry.tools(identity=identity))


async def test_a_model_searches_describes_and_calls() -> None:
    three = tools()
    found = await three.call(SEARCH, {"query": "open a new issue"})
    first = found.text.splitlines()[0]
    assert first == (
        "git.issues/create(title: str, labels?: [{name?: str, sub?: {…}}], state?: 'open'|'closed', "
        "owner?: str|null, extra?: any) query: Create an issue"
    )
    described = await three.call(DESCRIBE, '{"ids": ["git.issues/create", "git.nope"]}')
    assert "title: The title." in described.text
    assert "state:  (default open)" in described.text
    assert "OPERATION_NOT_FOUND" in described.text
    called = await three.call(CALL, {"id": "git.issues/create", "input": {"title": "x"}})
    assert json.loads(called.text) == {"title": "x"}
    wrong = await three.call(CALL, {"id": "git.issues/create", "input": {}})
    assert wrong.is_error
    assert "title" in wrong.text


async def test_wrong_arguments_are_results() -> None:
    three = tools()
    for name, arguments in (
        ("other", {}),
        (SEARCH, "{"),
        (SEARCH, {"query": 1}),
        (SEARCH, {"query": "x", "limit": "many"}),
        (DESCRIBE, {}),
        (DESCRIBE, {"ids": [1]}),
        (CALL, {}),
        (CALL, {"id": "git.nope", "input": {}}),
        (CALL, {"id": "git.issues/create", "input": [1]}),
    ):
        assert (await three.call(name, arguments)).is_error, (name, arguments)


async def test_search_finds_only_permitted_operations() -> None:
    three = tools(Identity("ann"))
    assert "git.admin" not in (await three.call(SEARCH, {"query": "delete issues"})).text
    assert "git.admin" not in (await three.call(SEARCH, {"query": ""})).text
    assert "git.admin(" not in (await three.call(DESCRIBE, {"ids": ["git.admin"]})).text
    assert (await three.call(CALL, {"id": "git.admin", "input": {}})).is_error
    assert "git.admin" in (await tools().call(SEARCH, {"query": "delete issues"})).text


async def test_definitions_satisfy_every_provider() -> None:
    three = tools()
    for each in three.anthropic():
        assert problems_of_schema("anthropic", each["input_schema"]) == []
    assert [each["function"]["name"] for each in three.openai()] == [SEARCH, DESCRIBE, CALL]
    assert three.openai(api="responses")[0]["name"] == SEARCH
    assert set(three.gemini()[0]) == {"name", "description", "parameters_json_schema"}
    assert set(three.mcp()[0]) == {"name", "description", "inputSchema"}


async def test_a_listing_of_github_costs_at_most_2000_tokens() -> None:
    registry = await github()
    text = compact_listing(registry.operations)
    assert "1223 operations" in text
    assert "github.repos (2" in text
    assert len(text) / 3 <= 2_000
    assert SearchTools(registry.tools()).search("") == text


def test_listings_of_any_size() -> None:
    assert compact_listing([]) == "0 operations. Each line: group (number of operations): names"
    assert compact_listing(["a.b", "a.getUser", "a.getTeam", "a.x/y"]).splitlines()[1:] == [
        "a (1): b",
        "a.get* (2): getTeam getUser",
        "a.x (1): y",
    ]
    many = compact_listing([f"namespace{index}.operation" for index in range(5_000)], tokens=200)
    assert len(many) <= 600
    assert "more groups" in many


async def test_signatures_of_github_are_short() -> None:
    registry = await github()
    shown = [signature(spec) for spec in registry.list()]
    assert all(len(each) < 4_100 for each in shown)
    assert sum(map(len, shown)) / len(shown) < 400
    assert all(len(describe(spec)) < 4_100 for spec in registry.list()[:200])
