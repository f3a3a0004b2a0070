"""Values, metas and envelopes for the property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from operations import ResponseEnvelope, http_envelope, mcp_envelope
from operations.envelope import LocalResponseMeta, SSEEvent

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Keys that look like the marker for bytes are drawn often, to test the escape.
keys = texts | st.sampled_from(["$bytes", "$$bytes", "$$$bytes", "bytes", "data", "meta", "source", "extra", "type"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(max_size=12)
)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=4) | st.dictionaries(keys, children, max_size=4)


json_values: st.SearchStrategy[Any] = st.recursive(scalars, _containers, max_leaves=15)
json_objects: st.SearchStrategy[dict[str, Any]] = st.dictionaries(keys, json_values, max_size=4)


def _optional(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.just({}) | st.builds(lambda value: {name: value}, values)


def _merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda drawn: {key: value for part in drawn for key, value in part.items()})


_annotations = _merged(
    _optional("audience", st.lists(st.sampled_from(["user", "assistant"]), max_size=2)),
    _optional("priority", st.floats(0, 1)),
    _optional("lastModified", texts),
    _optional("level", json_values),
)
_resource = _merged(
    st.fixed_dictionaries({"uri": texts}),
    _optional("mimeType", texts),
    _optional("text", texts),
    _optional("blob", texts),
    _optional("_meta", json_objects),
)
_common = (_optional("annotations", _annotations), _optional("_meta", json_objects), _optional("extra", json_values))


def _block(kind: str, fields: dict[str, st.SearchStrategy[Any]], *optional: str) -> st.SearchStrategy[dict[str, Any]]:
    required = st.fixed_dictionaries({"type": st.just(kind), **fields})
    return _merged(required, *(_optional(name, texts) for name in optional), *_common)


content_blocks: st.SearchStrategy[dict[str, Any]] = st.one_of(
    _block("text", {"text": texts}),
    _block("image", {"data": texts, "mimeType": texts}),
    _block("audio", {"data": texts, "mimeType": texts}),
    _block("resource", {"resource": _resource}),
    _block("resource_link", {"uri": texts, "name": texts}, "description", "mimeType", "title"),
)

header_names = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=10)

local_envelopes = st.builds(ResponseEnvelope, json_values, st.builds(LocalResponseMeta, texts, st.integers(0, 2**53)))
http_envelopes = st.builds(
    http_envelope,
    json_values,
    status_code=st.integers(100, 599),
    headers=st.lists(st.tuples(header_names | st.just("Set-Cookie"), texts), max_size=5),
    content_type=texts,
    event=st.none() | st.builds(SSEEvent, texts, st.none() | texts),
)
mcp_envelopes = st.builds(
    mcp_envelope,
    json_values,
    is_error=st.booleans(),
    content=st.lists(content_blocks, max_size=3),
    structured_content=st.none() | json_objects,
    extensions=st.none() | json_objects,
)
envelopes: st.SearchStrategy[ResponseEnvelope[Any]] = st.one_of(local_envelopes, http_envelopes, mcp_envelopes)
