from __future__ import annotations

from operations.cli.commands.search import rank
from operations.config import CatalogueEntry


def entry(
    id: str, description: str = "", *, tags: tuple[str, ...] = (), fields: tuple[str, ...] = ()
) -> CatalogueEntry:
    return CatalogueEntry(id, "query", "", description, "source", tags, fields)


ENTRIES = [
    entry("github.issues_create", "Create an issue", fields=("owner", "repo", "title")),
    entry("github.issues_list", "List the issues of a repository"),
    entry("github.pulls_create", "Create a pull request", tags=("pulls",)),
    entry("github.createDeployment", "Deploy"),
    entry("mail.send", "Send a message about an issue"),
    entry("shop.quote", "What some of an item would cost"),
]


def ids(query: str) -> list[str]:
    return [each.id for each in rank(query, ENTRIES)]


def test_all_words_come_before_some_and_names_before_descriptions() -> None:
    assert ids("create issue")[0] == "github.issues_create"
    assert ids("issue")[0].startswith("github.issues")
    assert ids("issue")[-1] == "mail.send"
    assert "github.createDeployment" in ids("deployment")
    assert ids("pulls") == ["github.pulls_create"]
    assert ids("cost") == ["shop.quote"]


def test_beginnings_and_parts_of_words_are_found() -> None:
    assert ids("quot") == ["shop.quote"]
    assert ids("repositories")[0] == "github.issues_list"
    assert ids("zzz") == []
    assert ids("  ") == []
