"""`search`: operations that words describe, the likeliest first."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Given, Option, whole_number
from operations.cli.commands import SUMMARIES
from operations.cli.commands.ls import tabbed, table
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.listing import as_data, read_listing
from operations.cli.output import write_json
from operations.cli.terminal import is_terminal, results, write_text
from operations.config.cache import CatalogueEntry

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WEIGHTS = {"name": 6.0, "namespace": 3.0, "title": 3.0, "tags": 3.0, "fields": 1.0, "description": 2.0}


def run(given: Given) -> int:
    """Search."""
    ranked = rank(" ".join(given.words), read_listing(given).entries)[: given.limit]
    if given.json:
        write_json([as_data(entry) for entry in ranked])
    if not ranked:
        words = " ".join(given.words)
        raise CommandError(f"nothing is like {words!r}", "ops ls lists everything", exit_code=NOT_FOUND)
    if given.json:
        return OK
    lines = table(ranked) if is_terminal(results()) else tabbed(ranked)
    write_text("".join(f"{line}\n" for line in lines))
    return OK


def rank(query: str, entries: Sequence[CatalogueEntry]) -> list[CatalogueEntry]:
    """Return the entries with any word of the query, best first: more words first, then rarer words."""
    terms = list(dict.fromkeys(_split(query)))
    if not terms:
        return []
    matches = [(entry, _matches(entry, terms)) for entry in entries]
    found = [sum(1 for _, match in matches if match[index]) for index in range(len(terms))]
    rarity = [math.log(1 + len(entries) / (1 + count)) for count in found]
    scored = []
    for entry, match in matches:
        hits = sum(1 for value in match if value)
        if hits:
            score = sum(value * weight for value, weight in zip(match, rarity, strict=True))
            if query.strip().lower() in entry.id.lower():
                score *= 2
            scored.append((hits, score / (1 + len(entry.id) / 200), entry))
    scored.sort(key=lambda each: (-each[0], -each[1], each[2].id))
    return [entry for _, _, entry in scored]


def _matches(entry: CatalogueEntry, terms: list[str]) -> list[float]:
    namespace, _, name = entry.id.rpartition(".")
    places = {
        "name": _split(name),
        "namespace": _split(namespace),
        "title": _split(entry.title),
        "tags": [word for tag in entry.tags for word in _split(tag)],
        "fields": [word for field in entry.fields for word in _split(field)],
        "description": _split(entry.description[:2000]),
    }
    return [max(_WEIGHTS[place] * _likeness(term, words) for place, words in places.items()) for term in terms]


def _likeness(term: str, words: list[str]) -> float:
    best = 0.0
    for word in words:
        if word == term:
            return 1.0
        if len(term) > 2 and (word.startswith(term) or (len(word) > 3 and term.startswith(word))):
            best = max(best, 0.7)
        elif len(term) > 3 and term in word:
            best = max(best, 0.4)
    return best


def _split(text: str) -> list[str]:
    return [_singular(word.lower()) for word in _WORDS.findall(text)]


def _singular(word: str) -> str:
    """Return a word without its plural ending: `issues` matches `issue`."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


COMMAND = Command(
    name="search",
    summary=SUMMARIES["search"],
    run=run,
    arguments=(Argument("WORDS", "what it should be about", many=True),),
    options=(
        Option("--limit", "how many at most", "-l", value="NUMBER", convert=whole_number, default=20),
        *LISTING_OPTIONS,
    ),
    examples=(
        ("ops search create issue", "the likeliest first"),
        ("ops search invoice --json --limit 3", "for programs"),
    ),
)
