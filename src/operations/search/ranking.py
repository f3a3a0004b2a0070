"""SearchIndex: BM25 over the fields of documents, weighted by the query's intent.

`tf = Σ weight·count / (1 - b + b·length/average)` over the fields of a document. Each word of a query has alternatives:
its stem, synonyms, and stems with the same beginning. Each alternative has a weight `w`. The word adds the score
`idf·w·3tf/(tf + 2)` of its best alternative. The sum of all words is then multiplied by factors: for example, a
document scores higher if it has the query's verb, and lower for each of its subjects that the query does not mention.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from operations.search.words import PHRASES, SCOPES, STOP_WORDS, SYNONYMS, VERBS, split_words, stem, stems

_WEIGHTS: dict[str, tuple[float, float]] = {
    "title": (5.0, 0.6),
    "id": (3.0, 0.5),
    "sentence": (2.0, 0.5),
    "description": (0.6, 0.7),
    "path": (2.0, 0.5),
    "verb": (1.5, 0.0),
    "tags": (1.5, 0.3),
    "fields": (0.5, 0.6),
}
"""The weight of each field, and `b`: how much the length of a field reduces the weight of its words, from 0 to 1."""
_METHODS = {"GET": "read", "HEAD": "read", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
_TYPES = {"query": "read", "mutation": "write", "subscription": "read"}
_QUESTION_WORDS = ("who", "which", "what", "how")
_WRITES = frozenset(("create", "update", "write"))
_VERB_WEIGHT = 0.6
_PREFIX_WEIGHT = 0.7
_SHORTEST_PREFIX = 5
_SINGLE_FOR_PLURAL = 0.75
_MAX_QUERY_CHARACTERS = 400
_MAX_QUERY_WORDS = 24
_MAX_DESCRIPTION = 2_000
_MAX_TITLE_WORDS = 12
_MAX_PREFIXED = 50
_MARKUP = re.compile(r"<[^<>]{0,300}>|\[!\w+\]|https?://\S+")
_LINK = re.compile(r"\]\([^()]{0,300}\)")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n\s*\n")
_VERSION = re.compile(r"(?:v\d+|api)?")
_PARAMETER = re.compile(r"\{[^{}]*\}")


class SearchDocument(msgspec.Struct, frozen=True):
    """The searchable text of one operation."""

    id: str
    title: str = ""
    description: str = ""
    type: str = ""
    """The type of the operation: query, mutation or subscription."""
    method: str = ""
    """The HTTP method of an API operation; otherwise empty."""
    path: str = ""
    """The path of an API operation, with its parameters in braces; otherwise empty."""
    tags: Sequence[str] = ()
    fields: Sequence[str] = ()
    """Names of the input's properties."""


class _Entry(msgspec.Struct):
    """The facts about a document that change its score."""

    id: str
    intent: str
    nouns: frozenset[str]
    """Stems of the words that name the subject: those of the title, else of the path, else of the id, without verbs."""
    scopes: frozenset[str]
    """Stems of qualifiers in the title and the path, such as `legacy`."""
    last: str
    """The stem of the last word of the path, without parameters and versions; empty if there is no such word."""
    depth: int
    """Number of path segments, without parameters and versions."""
    verbs: frozenset[str]
    """Stems of verbs: the first word of the title, and the action at the end of the path (`/merge`)."""
    is_single: bool
    """Whether the path ends in a parameter: one resource, not a list."""


class _Term(msgspec.Struct):
    """One word of a query."""

    weight: float
    alternatives: dict[str, float]
    """The stems that count as matches of the word, each with its weight from 0 to 1."""


class _Intent(msgspec.Struct, frozen=True):
    """The intent of a query. Its `kind` is read, create, update, write or delete."""

    kind: str
    verb: str = ""
    """The stem of the query's verb; empty if the intent is guessed."""
    is_guessed: bool = False


class SearchIndex:
    """An index of the words of documents, built once; `search` returns the ids that match a query, best first."""

    def __init__(self, documents: Iterable[SearchDocument]) -> None:
        self._entries: list[_Entry] = []
        self._postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        fielded = []
        for document in documents:
            fields, entry = _analyse(document)
            fielded.append(fields)
            self._entries.append(entry)
        self._weigh(fielded)
        self._vocabulary = sorted(self._postings)
        count = len(self._entries)
        self._idf = {
            word: math.log(1 + (count - len(found) + 0.5) / (len(found) + 0.5))
            for word, found in self._postings.items()
        }
        self._largest_idf = max(self._idf.values(), default=1.0)

    def search(self, query: str, *, limit: int | None = None) -> list[str]:
        """Return the ids of documents that match any word of the query, best first.

        If the query is an id, that id is the first result.
        """
        query = query[:_MAX_QUERY_CHARACTERS]
        terms, intent = self._read(query)
        scores: dict[int, float] = {}
        matched: dict[int, float] = {}
        for term in terms:
            for index, score in self._score(term).items():
                scores[index] = scores.get(index, 0.0) + score
                matched[index] = matched.get(index, 0.0) + term.weight
        whole = sum(term.weight for term in terms) or 1.0
        asked = {word for term in terms for word in term.alternatives}
        plurals = {stem(word) for word in split_words(query) if word.endswith("s") and not word.endswith("ss")}
        exact = query.strip().lower()
        ranked = []
        for index, score in scores.items():
            entry = self._entries[index]
            does = intent.verb if intent.verb in entry.verbs else entry.intent
            score *= matched[index] / whole * _agreement(does, intent) * self._focus(entry, asked)
            if entry.is_single and entry.intent == "read" and entry.last in plurals:
                score *= _SINGLE_FOR_PLURAL
            ranked.append((entry.id.lower() != exact, -score, entry.id))
        ranked.sort()
        return [found for _, _, found in ranked[:limit]]

    def _weigh(self, fielded: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Fill `_postings`: the weighted frequency of each stem, by document."""
        for name, (weight, b) in _WEIGHTS.items():
            lengths = [len(fields[name]) for fields in fielded]
            average = sum(lengths) / max(1, len(lengths)) or 1.0
            for index, fields in enumerate(fielded):
                scale = weight / (1 - b + b * lengths[index] / average)
                for word, count in Counter(fields[name]).items():
                    posting = self._postings[word]
                    posting[index] = posting.get(index, 0.0) + scale * count

    def _read(self, query: str) -> tuple[list[_Term], _Intent]:
        """Return the terms of a query and its intent."""
        text = query.lower() if " " in query.strip() else query
        for pattern, put in PHRASES:
            text = pattern.sub(put, text)
        words = split_words(text)[:_MAX_QUERY_WORDS]
        terms = []
        telling = [word for word in words if word not in STOP_WORDS] or words
        for word in dict.fromkeys(map(stem, telling)):
            alternatives = {word: 1.0}
            for other, weight in SYNONYMS.get(word, {}).items():
                alternatives[other] = max(weight, alternatives.get(other, 0.0))
            for other in self._prefixed(word):
                alternatives.setdefault(other, _PREFIX_WEIGHT)
            importance = self._idf.get(word, self._largest_idf * 0.7)
            terms.append(_Term(importance * (_VERB_WEIGHT if word in VERBS else 1.0), alternatives))
        return terms, _intent(words)

    def _prefixed(self, word: str) -> list[str]:
        """Return the stems of the index that begin with `word`, or that `word` begins with; none for a short `word`."""
        if len(word) < _SHORTEST_PREFIX:
            return []
        at = bisect_left(self._vocabulary, word)
        found: list[str] = []
        while at < len(self._vocabulary) and self._vocabulary[at].startswith(word) and len(found) < _MAX_PREFIXED:
            found.append(self._vocabulary[at])
            at += 1
        shorter = (word[:length] for length in range(_SHORTEST_PREFIX, len(word)))
        return [*found, *(each for each in shorter if each in self._postings)]

    def _score(self, term: _Term) -> dict[int, float]:
        """Return the score that a term adds to each document: the highest score among its alternatives."""
        best: dict[int, float] = {}
        for word, weight in term.alternatives.items():
            factor = 3 * self._idf.get(word, 0.0) * weight * (_VERB_WEIGHT if word in VERBS else 1.0)
            for index, tf in self._postings.get(word, {}).items():
                score = factor * tf / (tf + 2)
                if score > best.get(index, 0.0):
                    best[index] = score
        return best

    def _focus(self, entry: _Entry, asked: set[str]) -> float:
        """Return a factor of the score: the more of the document's subjects the query lacks, the smaller the factor."""
        extra = sum(self._idf.get(noun, 0.0) for noun in entry.nouns - asked) / self._largest_idf
        factor = 1 / (1 + 0.55 * extra) / (1 + 0.25 * len(entry.scopes - asked)) / (1 + 0.03 * entry.depth)
        return factor * (1.15 if entry.last in asked else 1.0)


def _analyse(document: SearchDocument) -> tuple[dict[str, list[str]], _Entry]:
    """Return the stems of each field of a document, and its entry in the index."""
    plain = _plain(document.description[: _MAX_DESCRIPTION * 2])[:_MAX_DESCRIPTION]
    sentence = _first_sentence(plain)
    namespace, _, name = document.id.rpartition(".")
    segments = [segment for segment in _PARAMETER.sub("", document.path).split("/") if not _VERSION.fullmatch(segment)]
    path = [word for segment in segments for word in stems(segment)]
    ends_in_parameter = document.path.endswith("}")
    titled = stems(document.title)
    leading = titled or stems(" ".join(sentence.split()[:_MAX_TITLE_WORDS]))
    if not titled and not ends_in_parameter:
        leading += path[-1:]
    fields = {
        "title": leading,
        "id": [stem(word) for word in (*split_words(name), *split_words(namespace))],
        "sentence": stems(sentence),
        "description": stems(plain),
        "path": path,
        "verb": [],
        "tags": [word for tag in document.tags for word in stems(tag)],
        "fields": [word for field in document.fields for word in stems(field)],
    }
    intent = VERBS.get((leading or stems(name) or [""])[0]) or _intent_of_method(document, ends_in_parameter)
    fields["verb"] = [stem(intent)] if intent else []
    # Without a title, the path names the subject; a first sentence has too many other words.
    nouns = frozenset(word for word in titled or path or fields["id"] if word not in VERBS)
    scopes = frozenset(word for word in (*titled, *path) if word in SCOPES)
    last = path[-1] if path else ""
    verbs = frozenset(word for word in (*leading[:1], *(() if ends_in_parameter else path[-1:])) if word in VERBS)
    return fields, _Entry(document.id, intent, nouns, scopes, last, len(segments), verbs, ends_in_parameter)


def _intent_of_method(document: SearchDocument, ends_in_parameter: bool) -> str:
    """Return the intent of an HTTP method; without a method, the intent of the operation's type."""
    if document.method.upper() == "POST" and ends_in_parameter:
        return "update"
    return _METHODS.get(document.method.upper()) or _TYPES.get(document.type, "")


def _plain(text: str) -> str:
    """Return a description without HTML, URLs, headings and quoted lines."""
    text = _LINK.sub(" ", _MARKUP.sub(" ", text))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith((">", "#"))).strip()


def _first_sentence(text: str) -> str:
    end = _SENTENCE_END.search(text)
    return text if end is None else text[: end.start()]


def _intent(words: Sequence[str]) -> _Intent:
    """Return the intent of a query, from its first word that is not a stop word; guess if that word is not a verb."""
    for index, word in enumerate(words):
        if word in STOP_WORDS and word not in _QUESTION_WORDS:
            continue
        intent = VERBS.get(stem(word))
        if intent is not None:
            return _Intent(intent, stem(word))
        # "merge a branch": an unknown word before an article is a verb.
        is_verb = words[index + 1 : index + 2] in (["a"], ["an"], ["the"])
        return _Intent("write" if is_verb else "read", is_guessed=True)
    return _Intent("read", is_guessed=True)


def _agreement(does: str, asked: _Intent) -> float:
    """Return a factor of the score from the intent of a document (`does`) and of the query.

    It is above 1 if the intents agree, 1 if the intent of the document is unknown, and otherwise below 1.
    """
    if not does:
        return 1.0
    if does == asked.verb:
        return 1.6
    agrees = does == asked.kind or (does in _WRITES and asked.kind in _WRITES and "write" in (does, asked.kind))
    if asked.is_guessed:
        return 1.1 if agrees else 0.79
    if agrees:
        return 1.35
    return 0.5 if does == "delete" else 0.65
