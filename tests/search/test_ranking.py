from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from operations import OperationRegistry
from operations.search import SearchDocument, SearchIndex
from operations.search.words import SYNONYMS, stem, stems
from operations.testing import stub_operation
from tests.documents import github, stripe
from tests.search.questions import GITHUB, STRIPE

Load = Callable[[], Awaitable[OperationRegistry]]
SETS: list[tuple[str, Load, list[tuple[str, str]]]] = [("github", github, GITHUB), ("stripe", stripe, STRIPE)]


def ranks(registry: OperationRegistry, namespace: str, questions: list[tuple[str, str]]) -> list[int]:
    """Return the rank of the right operation for each question, from 0."""
    found = []
    for question, answers in questions:
        right = {f"{namespace}.{answer}" for answer in answers.split()}
        ids = [spec.id for spec in registry.search(question, limit=50)]
        found.append(next((rank for rank, each in enumerate(ids) if each in right), 50))
    return found


@pytest.mark.parametrize("aside", [False, True], ids=["tuning", "kept aside"])
async def test_questions_in_plain_words_find_their_operation(aside: bool) -> None:
    found: list[int] = []
    for namespace, load, questions in SETS:
        found += ranks(await load(), namespace, questions[int(aside) :: 2])
    assert len(found) == 30
    assert sum(rank == 0 for rank in found) / len(found) >= 0.75
    assert sum(rank < 5 for rank in found) / len(found) >= 0.93


async def test_every_question_has_an_answer_that_exists() -> None:
    for namespace, load, questions in SETS:
        registry = await load()
        named = [f"{namespace}.{answer}" for _, answers in questions for answer in answers.split()]
        assert [each for each in named if each not in registry] == []


def index(*documents: SearchDocument) -> SearchIndex:
    return SearchIndex(documents)


ISSUES = index(
    SearchDocument("git.issues/create", "Create an issue", method="POST", path="/issues", fields=["title", "body"]),
    SearchDocument("git.issues/list", "List issues", method="GET", path="/issues"),
    SearchDocument("git.issues/get", "Get an issue", method="GET", path="/issues/{number}"),
    SearchDocument("git.issues/delete", "Delete an issue", method="DELETE", path="/issues/{number}"),
    SearchDocument("git.issues/list-for-org", "List organization issues", method="GET", path="/orgs/{org}/issues"),
)


def test_the_verb_of_a_query_decides_among_equal_nouns() -> None:
    assert ISSUES.search("open a new issue")[0] == "git.issues/create"
    assert ISSUES.search("list all issues")[0] == "git.issues/list"
    assert ISSUES.search("get rid of an issue")[0] == "git.issues/delete"
    assert ISSUES.search("get the issue")[0] == "git.issues/get"
    assert ISSUES.search("issues of my organization")[0] == "git.issues/list-for-org"


def test_an_exact_id_is_first() -> None:
    assert ISSUES.search("git.issues/list-for-org")[0] == "git.issues/list-for-org"
    assert ISSUES.search("Git.Issues/Delete")[0] == "git.issues/delete"


def test_beginnings_of_words_and_words_of_fields_match() -> None:
    found = index(SearchDocument("a.b", "Configure notifications"), SearchDocument("a.c", fields=["deliveryAddress"]))
    assert found.search("config notif") == ["a.b"]
    assert found.search("address") == ["a.c"]
    assert found.search("nothing like it") == []


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of a", "\ud800", "x" * 1_000_000, "a b " * 100_000])
def test_any_query_is_answered(query: str) -> None:
    assert ISSUES.search(query) == []
    assert index().search(query) == []


def test_a_query_of_common_words_finds_ids_with_them() -> None:
    assert index(SearchDocument("code.one"), SearchDocument("code.two")).search("one") == ["code.one"]


def test_descriptions_with_markup_are_read_as_text() -> None:
    found = index(
        SearchDocument("a.pay", description="> [!NOTE]\n> Beta.\n\n<p>Refunds a <a href='/docs/xyz'>charge</a>.</p>"),
        SearchDocument("a.other", description="Lists charges"),
    )
    assert found.search("refund") == ["a.pay"]
    assert found.search("xyz") == []


def test_stems() -> None:
    assert {stem(word) for word in ("invoice", "invoices", "invoicing", "invoiced")} == {"invoic"}
    assert {stem(word) for word in ("cancel", "cancelled", "cancelling")} == {"cancel"}
    assert stems("createIssueComment of_the HTTPServer") == ["creat", "issu", "com", "http", "serv"]
    assert "delet" in SYNONYMS[stem("remove")]


def test_a_registry_searches_its_current_operations() -> None:
    registry = OperationRegistry([stub_operation("shop.quote", description="What an item would cost", tags=["shop"])])
    assert [spec.id for spec in registry.search("price of an item")] == ["shop.quote"]
    registry.register(stub_operation("mail.send", description="Send a message about an item"))
    assert {spec.id for spec in registry.search("item")} == {"shop.quote", "mail.send"}
    assert [spec.id for spec in registry.search("item", namespace="mail")] == ["mail.send"]
    assert [spec.id for spec in registry.search("item", tag="shop")] == ["shop.quote"]
    assert [spec.id for spec in registry.search("item", type="mutation")] == []
    assert len(registry.search("item", limit=1)) == 1
    registry.unregister("shop.quote")
    assert [spec.id for spec in registry.search("item")] == ["mail.send"]
