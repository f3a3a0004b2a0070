"""Filters of a source: allow, deny, rename, access rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operations import AccessControl, CallError, Operation, OperationSpec
from operations.catalogue import OperationCatalogue
from operations.config.settings import AccessRule, PythonSettings, Source
from operations.config.source_filters import SourceFilter
from operations.config.workspace import FilteredCatalogue


def make(operation_id: str, **spec: Any) -> Operation[Any]:
    namespace, _, name = operation_id.rpartition(".")
    return Operation(
        spec=OperationSpec(name=name, namespace=namespace, type="query", **spec),  # type: ignore[arg-type]
        handler=lambda input, context: None,
    )


def shape(
    access: dict[str, AccessRule] | None = None,
    *,
    prefix: str | None = None,
    namespace: str | None = "gh",
    **settings: Any,
) -> SourceFilter:
    source = Source(
        name="s",
        settings=PythonSettings(python="x", **settings),
        directory=Path("/"),
        file=Path("/x"),
        locate=lambda: 1,
        written={},
    )
    return SourceFilter(source, access or {}, prefix=prefix, namespace=namespace)


@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        ([], [], ["gh.issues/list", "gh.repo_get", "gh.resources.read"]),
        (["repo_*"], [], ["gh.repo_get"]),
        (["gh.repo_get"], [], ["gh.repo_get"]),
        (["issues/*", "resources.*"], [], ["gh.issues/list", "gh.resources.read"]),
        (["*"], ["read"], ["gh.issues/list", "gh.repo_get"]),
        (["repo?get"], [], ["gh.repo_get"]),
        (["repo_*"], ["*get"], []),
        (["REPO_*"], [], []),
    ],
)
def test_patterns_match_ids_and_names(allow: list[str], deny: list[str], expected: list[str]) -> None:
    rules = shape(allow=allow, deny=deny)
    given = [make(f"gh.{name}") for name in ("issues/list", "repo_get")] + [make("gh.resources.read")]
    assert [found.id for operation in given if (found := rules.apply(operation))] == expected


def test_a_pattern_matches_the_name_the_source_uses() -> None:
    operation = make("gh.repo_get", annotations={"sourceName": "repo:get"})
    assert shape(allow=["repo:*"]).apply(operation) is operation


@pytest.mark.parametrize(
    ("rename", "before", "after"),
    [
        ({"repo_get": "repo"}, "gh.repo_get", "gh.repo"),
        ({"repo_*": "*"}, "gh.repo_get", "gh.get"),
        ({"*_*": "*.*"}, "gh.repo_get", "gh.repo.get"),
        ({"gh.*": "github.*"}, "gh.resources.read", "github.resources.read"),
        ({"resources.*": "files.*"}, "gh.resources.read", "gh.files.read"),
        ({"*": "my_*"}, "gh.resources.read", "gh.resources.my_read"),
        ({"read": "load"}, "gh.resources.read", "gh.resources.load"),
        ({"other": "x"}, "gh.repo_get", "gh.repo_get"),
    ],
)
def test_matched_operations_are_renamed(rename: dict[str, str], before: str, after: str) -> None:
    found = shape(rename=rename).apply(make(before))
    assert found is not None
    assert found.id == after
    if found.spec.name != before.rpartition(".")[2]:
        assert found.spec.annotations["sourceName"] == before.rpartition(".")[2]


def test_a_prefix_is_put_before_every_id() -> None:
    found = shape(rename={"a.b": "c.d"}, prefix="my.shop", namespace=None).apply(make("a.b"))
    assert found is not None
    assert found.id == "my.shop.c.d"


def test_a_policy_is_for_operations_without_their_own() -> None:
    rules = shape(policy="off")
    first, second = rules.apply(make("a.b")), rules.apply(make("a.c", output_policy="strict"))
    assert first is not None
    assert second is not None
    assert (first.spec.output_policy, second.spec.output_policy) == ("off", "strict")


def test_access_rules_add_up_and_never_loosen() -> None:
    own = AccessControl(required_scopes=["own"], required_scopes_any=["a", "b"])
    rules = {
        "x.*": AccessRule(scopes=["x", "own"]),
        "x.y": AccessRule(any=["b", "c"], resource_type="disk", resource_action="read"),
        "y.*": AccessRule(scopes=["never"]),
    }
    found = shape(rules).apply(make("x.y", access_control=own))
    assert found is not None
    assert found.spec.access_control == AccessControl(("own", "x"), ("b",), "disk", "read")


def test_rules_apply_to_the_new_names() -> None:
    found = shape({"gh.repo": AccessRule(scopes=["s"])}, rename={"repo_get": "repo"}).apply(make("gh.repo_get"))
    assert found is not None
    assert found.spec.access_control.required_scopes == ("s",)


@pytest.mark.parametrize(
    "rules",
    [
        {"*": AccessRule(any=["a"]), "x.*": AccessRule(any=["b"])},
        {"*": AccessRule(resource_type="a"), "x.*": AccessRule(resource_type="b")},
    ],
)
def test_rules_that_contradict_leave_the_operation_out(rules: dict[str, AccessRule]) -> None:
    with pytest.raises(CallError, match=r"the access rules for x\.y contradict each other"):
        shape(rules).apply(make("x.y"))
    registry = OperationCatalogue()
    view = FilteredCatalogue(registry, shape(rules), lambda _: None)
    view.register(make("x.y"))
    assert len(registry) == 0
    assert "contradict" in view.skipped["x.y"].reason


def test_patterns_without_matches_are_reported() -> None:
    rules = shape(allow=["a*", "nothing"], deny=["z"], rename={"q": "r"})
    rules.apply(make("gh.abc"))
    assert rules.unused == {"nothing", "z", "q"}


def test_a_view_follows_its_source() -> None:
    registry = OperationCatalogue()
    other = make("gh.taken")
    registry.register(other)
    view = FilteredCatalogue(registry, shape(rename={"old": "new"}, deny=["secret"]), lambda _: "first")
    view.register_all([make("gh.old"), make("gh.secret"), make("gh.taken")])
    assert [spec.id for spec in registry.list()] == ["gh.new", "gh.taken"]
    assert registry.get_operation("gh.taken") is other
    assert "duplicate id gh.taken: already registered by source first" in view.skipped["gh.taken"].reason
    changed = make("gh.old", title="changed")
    view.register(changed, replace=True)
    spec = registry.get_spec("gh.new")
    assert spec is not None
    assert spec.title == "changed"
    assert view.get_operation("gh.old") is changed
    view.unregister("gh.old")
    view.unregister("gh.secret")
    view.unregister("gh.taken")
    assert [spec.id for spec in registry.list()] == ["gh.taken"]
