"""Parameters: the test vectors, further rules, and that no value changes the structure of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.parameters import (
    Location,
    Parameter,
    PathTemplate,
    cookie_header,
    header_values,
    query_string,
)

Written = TypeVar("Written")
VECTORS = json.loads(Path(__file__).with_name("param_vectors.json").read_text("utf-8"))["vectors"]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
awkward = st.sampled_from(
    ["..", ".", "%2e%2e", "../x", "a/b", "?", "#", "\r\nX: y", "\x00", "; a=b", "a&b=c", "é", "\ud800", "", " ", ","]
)
names = st.text(max_size=4) | awkward
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars | awkward,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
styles = st.sampled_from(
    [None, "simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject", "cookie", "odd"]
)
explodes = st.sampled_from([None, True, False])
media_types = st.sampled_from([None, None, None, "application/json", "text/plain", "application/xml"])
collections = st.sampled_from([None, None, None, "csv", "ssv", "tsv", "pipes", "multi"])


def expand_path(template: str, parameters: list[Parameter], values: dict[str, Any]) -> str:
    path, query = PathTemplate(template, parameters).fill(values)
    return f"{path}?{query}" if query else path


def described(name: str, location: Location) -> st.SearchStrategy[Parameter]:
    return st.builds(
        Parameter,
        st.just(name),
        st.just(location),
        styles,
        explodes,
        st.booleans(),
        media_types,
        collections,
        st.booleans(),
    )


def outcome(write: Callable[[], Written]) -> Written | CallError:
    try:
        return write()
    except CallError as error:
        return error


def serialise(vector: dict[str, Any]) -> str | None:
    def parameter(name: str) -> Parameter:
        return Parameter(
            name,
            cast(Location, vector["in"]),
            vector["style"],
            vector["explode"],
            vector["allowReserved"],
            vector["content"],
        )

    if vector["template"] is not None:
        return expand_path(vector["template"], [parameter(name) for name in vector["values"]], vector["values"])
    name = vector["name"]
    parameters, values = [parameter(name)], {name: vector["value"]}
    match vector["in"]:
        case "path":
            return expand_path(f"/x/{{{name}}}", parameters, values).removeprefix("/x/")
        case "query":
            return query_string(parameters, values)
        case "header":
            return dict(header_values(parameters, values)).get(name)
        case _:
            return cookie_header(parameters, values)


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    written = outcome(lambda: serialise(vector))
    if isinstance(written, CallError):
        assert written.code is ErrorCode.VALIDATION_ERROR
        assert vector["may_reject"], written
    else:
        assert written in [vector["expected"], *vector["also"]]


def query(value: Any, **fields: Any) -> str:
    return query_string([Parameter("p", "query", **fields)], {"p": value})


def path(value: Any, template: str = "/x/{p}", **fields: Any) -> str:
    return expand_path(template, [Parameter("p", "path", **fields)], {"p": value})


def header(value: Any, **fields: Any) -> str | None:
    return dict(header_values([Parameter("X-P", "header", **fields)], {"X-P": value})).get("X-P")


def cookie(value: Any, **fields: Any) -> str | None:
    return cookie_header([Parameter("p", "cookie", **fields)], {"p": value})


COLOURS = ["blue", "black"]
RGB = {"R": 100, "G": 200}


@pytest.mark.parametrize(
    ("style", "explode", "value", "expected"),
    [
        ("matrix", False, COLOURS, ";p=blue,black"),
        ("matrix", True, {"a": "", "b": "c=d"}, ";a;b=c%3Dd"),
        ("matrix", False, [""], ";p"),
        ("label", False, COLOURS, ".blue,black"),
        ("label", True, COLOURS, ".blue.black"),
        ("label", True, RGB, ".R=100.G=200"),
        ("simple", None, 1.0, "1"),
        ("simple", None, b"\xff\xfe", "%2F%2F4%3D"),
        ("simple", None, {"a": {"b": [1]}}, "a,%7B%22b%22%3A%5B1%5D%7D"),
        ("odd", None, COLOURS, "blue,black"),
    ],
)
def test_paths_by_style(style: str, explode: bool | None, value: Any, expected: str) -> None:
    assert path(value, style=style, explode=explode) == f"/x/{expected}"


@pytest.mark.parametrize(
    ("fields", "value", "expected"),
    [
        ({"explode": False}, RGB, "p=R,100,G,200"),
        ({"style": "pipeDelimited", "explode": True}, COLOURS, "p=blue&p=black"),
        ({"style": "spaceDelimited", "explode": True}, RGB, "R=100&G=200"),
        ({"style": "simple"}, COLOURS, "p=blue,black"),
        ({"style": "deepObject"}, {"a": [{"b": 1}, {"b": 2}]}, "p[a][0][b]=1&p[a][1][b]=2"),
        ({"style": "deepObject"}, ["x", None, "y"], "p[]=x&p[]=y"),
        ({"style": "deepObject"}, "x", "p=x"),
        ({"style": "deepObject"}, {"a": {}, "b": []}, ""),
        ({"collection_format": "csv"}, COLOURS, "p=blue,black"),
        ({"collection_format": "ssv"}, COLOURS, "p=blue black"),
        ({"collection_format": "tsv"}, COLOURS, "p=blue\tblack"),
        ({"collection_format": "pipes"}, COLOURS, "p=blue|black"),
        ({"collection_format": "multi"}, COLOURS, "p=blue&p=black"),
        ({"allow_empty": True}, [], "p="),
        ({"allow_empty": True, "style": "deepObject"}, {}, "p="),
        ({"allow_reserved": True, "explode": False}, ["a,b", "c/d"], "p=a,b,c/d"),
        ({"media_type": "application/vnd.x+json"}, [1, None], "p=[1,null]"),
        ({"media_type": "text/plain"}, "a b", "p=a b"),
        ({}, {"a": None, "b": [1]}, "b=[1]"),
        ({}, [None], ""),
        ({}, 1e21, "p=1e21"),
        ({}, 1e20, "p=100000000000000000000"),
        ({}, 0.00001, "p=0.00001"),
        ({}, 2**80, "p=1208925819614629174706176"),
        ({}, -0.0, "p=0"),
    ],
)
def test_queries(fields: dict[str, Any], value: Any, expected: str) -> None:
    assert unquote(query(value, **fields)) == expected


def test_a_comma_in_an_item_is_distinct_from_the_delimiter() -> None:
    assert query(["a,b", "c/d"], explode=False, allow_reserved=True) == "p=a%2Cb,c/d"
    assert query(["a,b", "c"], collection_format="csv") == "p=a%2Cb,c"
    assert header(["a,b", '"c,d"']) == 'a%2Cb,"c,d"'


@pytest.mark.parametrize(
    "fields",
    [
        {"style": "pipeDelimited"},
        {"style": "spaceDelimited"},
        {"collection_format": "pipes"},
        {"collection_format": "ssv"},
    ],
)
def test_an_item_with_an_ambiguous_delimiter_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="cannot send query parameter 'p': an item contains"):
        query(["a| b", "c"], **fields)


def test_reserved_characters_that_would_end_or_split_a_query_are_encoded_anyway() -> None:
    assert query("[a]#b&c=d", allow_reserved=True) == "p=%5Ba%5D%23b%26c=d"


def test_extra_pairs_come_last_and_are_encoded() -> None:
    assert query_string([Parameter("a", "query")], {"a": "x y"}, [("api_key", "k&k")]) == "a=x%20y&api_key=k%26k"
    assert query_string([], {}, [("k", "v")]) == "k=v"
    assert query_string([], {}) == ""


def test_only_parameters_of_the_location_are_encoded() -> None:
    everywhere = [Parameter(place, place) for place in ("path", "query", "header", "cookie")]
    values = {parameter.name: 1 for parameter in everywhere}
    assert query_string(everywhere, values) == "query=1"
    assert header_values(everywhere, values) == [("header", "1")]
    assert cookie_header(everywhere, values) == "cookie=1"


@pytest.mark.parametrize(
    ("media_type", "value", "expected"),
    [
        ("application/json", {"a": [1]}, "%7B%22a%22%3A%5B1%5D%7D"),
        ("application/x-www-form-urlencoded", {"a": [1, 2], "b": "c d"}, "a=1&a=2&b=c%20d"),
        ("application/x-www-form-urlencoded", "a=1&b=2#c d", "a=1&b=2%23c%20d"),
        ("application/jsonpath", "$.a[1:1]", "%24.a%5B1%3A1%5D"),
        (None, {"a": 1}, "a=1"),
    ],
)
def test_a_whole_query_string(media_type: str | None, value: Any, expected: str) -> None:
    parameter = Parameter("q", "querystring", media_type=media_type)
    assert query_string([parameter], {"q": value}) == expected
    assert query_string([parameter], {"q": value}, [("k", "v")]) == f"{expected}&k=v"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("/x/{p}?beta=true", "/x/v?beta=true"),
        ("/x?id={p}&a", "/x?id=v&a"),
        ("/x/{p}#uploads", "/x/v"),
        ("/#X-Amz-Target={gone}", "/"),
        ("/x/{p}{?page,size}", "/x/v"),
        ("/x/{p?}", "/x/v"),
        ("/x/{p+}", "/x/v"),
        ("/x/{+p}", "/x/v"),
        ("/x/{p:[0-9]+}", "/x/v"),
        ("/x/{p=projects/*}/y", "/x/v/y"),
        ("/a b/é/%20/50%/{p}/", "/a%20b/%C3%A9/%20/50%25/v/"),
        ("/a/./../b//{p}", "/a/./../b//v"),
        ("/x/{p}/{p}", "/x/v/v"),
        ("{p}", "v"),
        ("/x/Items({p}):go", "/x/Items(v):go"),
    ],
)
def test_path_keys_as_documents_write_them(template: str, expected: str) -> None:
    assert path("v", template) == expected


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("/x/{p}", "."),
        ("/x/{p}", ".."),
        ("/x/{p}/y", ".."),
        ("{p}", ".."),
        ("/x/.{p}", "."),
        ("/x/%2E{p}", "."),
        ("/x/{p}", "%2e%2E"),
        ("/x/{p}", "%252e"),
        ("/x/{p};v=1", ".."),
        ("/x/{p}{p}", "."),
        ("/x/{p}", ""),
        ("/x/{p}/y", ""),
        ("/x/{p}", None),
        ("/x/{p}", []),
        ("/x/{p}", {"a": None}),
        ("/x/{p}", float("nan")),
        ("/x/{p}", {"a": [float("inf")]}),
        ("/x/{p}", "\ud800"),
        ("/x/{p}", Path("/etc")),
    ],
)
def test_path_values_that_are_refused(template: str, value: Any) -> None:
    with pytest.raises(CallError) as refused:
        path(value, template)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert "'p'" in refused.value.message
    assert refused.value.details == {"parameter": "p", "in": "path"}


def test_an_undescribed_placeholder_is_filled_or_rejected() -> None:
    assert expand_path("/x/{p}", [], {"p": "a/b"}) == "/x/a%2Fb"
    with pytest.raises(CallError, match="cannot send path parameter 'p': missing required parameter"):
        expand_path("/x/{p}", [], {})


def test_a_refusal_names_the_parameter_of_the_lost_segment() -> None:
    with pytest.raises(CallError, match="cannot send path parameter 'c'"):
        expand_path("/{a}-{b}/{c}/{d}", [], {"a": "1", "b": "2", "c": "..", "d": "3"})


@pytest.mark.parametrize(
    ("value", "fields", "expected"),
    [
        ("a b", {}, "a b"),
        ('W/"etag"', {}, 'W/"etag"'),
        ("100%", {}, "100%"),
        ("é", {}, "%C3%A9"),
        (" a\tb ", {}, "a\tb"),
        ("", {}, ""),
        (RGB, {"explode": True}, "R=100,G=200"),
        ({"a=b": "c"}, {"explode": True}, "a%3Db=c"),
        (COLOURS, {"collection_format": "pipes"}, "blue|black"),
        ({"é": 1.5}, {"media_type": "application/json"}, '{"\\u00e9":1.5}'),
        ({"a": 1}, {"media_type": "application/json"}, '{"a":1}'),
        (None, {}, None),
        ([None], {}, None),
    ],
)
def test_headers(value: Any, fields: dict[str, Any], expected: str | None) -> None:
    assert header(value, **fields) == expected


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\rb", "a\0b", "\x7f", ["a", "\n"], {"\r": "a"}])
def test_header_values_that_are_refused(value: Any) -> None:
    with pytest.raises(CallError, match="cannot send header parameter 'X-P': it contains a line break"):
        header(value, explode=True)


def test_a_name_that_cannot_be_a_header_is_refused() -> None:
    with pytest.raises(CallError, match="is not a header name"):
        header_values([Parameter("X: y\r\nZ", "header")], {"X: y\r\nZ": "v"})


@pytest.mark.parametrize(
    ("value", "fields", "expected"),
    [
        (COLOURS, {}, "p=blue; p=black"),
        (RGB, {}, "R=100; G=200"),
        (COLOURS, {"style": "cookie"}, "p=blue; p=black"),
        (COLOURS, {"style": "cookie", "explode": False}, "p=blue,black"),
        ("a b%20", {"style": "cookie"}, "p=a b%20"),
        ("a=b", {"media_type": "text/plain"}, "p=a=b"),
        ({"a": 1}, {"media_type": "application/json"}, "p=%7B%22a%22%3A1%7D"),
        ("a/b", {"allow_reserved": True}, "p=a%2Fb"),
        ("", {}, "p="),
        ([], {}, None),
        (None, {}, None),
    ],
)
def test_cookies(value: Any, fields: dict[str, Any], expected: str | None) -> None:
    assert cookie(value, **fields) == expected


def test_several_cookies_are_one_header() -> None:
    parameters = [Parameter("a", "cookie"), Parameter("b", "cookie")]
    assert cookie_header(parameters, {"a": 1, "b": "x;y"}) == "a=1; b=x%3By"


@pytest.mark.parametrize("fields", [{"style": "cookie"}, {"media_type": "text/plain"}])
@pytest.mark.parametrize("value", ["a; b=c", "a\r\nb", "\0", "é"])
def test_raw_cookies_cannot_contain_delimiters(value: str, fields: dict[str, Any]) -> None:
    with pytest.raises(CallError, match="cannot send cookie parameter 'p'"):
        cookie(value, **fields)


def test_a_deeply_nested_value_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    for fields in ({"style": "deepObject"}, {"media_type": "application/json"}):
        with pytest.raises(CallError, match="cannot send query parameter 'p'"):
            query(deep, **fields)


@given(described("x", "path"), described("y", "path"), json_values, json_values)
def test_no_value_leaves_its_segment(x: Parameter, y: Parameter, first: Any, second: Any) -> None:
    written = outcome(lambda: expand_path("/a/{x}/b-{y}/c", [x, y], {"x": first, "y": second}))
    if isinstance(written, CallError):
        assert written.code is ErrorCode.VALIDATION_ERROR
        return
    assert re.fullmatch(r"/a/[^/?#\\\s]+/b-[^/?#\\\s]*/c", written)
    assert written.isascii()
    assert written.isprintable()
    assert unquote(written.split("/")[2]) not in (".", "..")


@given(described("x", "query"), json_values, st.text(st.characters(codec="utf-8")))
def test_no_value_adds_or_changes_another_query_parameter(x: Parameter, value: Any, key: str) -> None:
    written = outcome(lambda: query_string([x], {"x": value}, [("key", key)]))
    if isinstance(written, CallError):
        assert written.code is ErrorCode.VALIDATION_ERROR
        return
    assert re.fullmatch(r"[^#\s\[\]]*", written)
    assert written.isascii()
    *pairs, last = parse_qsl(written, keep_blank_values=True, strict_parsing=True)
    assert last == ("key", key)
    # Only an exploded object adds other names to the query.
    own = {str(name) for name in value} if isinstance(value, dict) and x.media_type is None else set()
    assert all(name == "x" or name.startswith("x[") or name in own for name, _ in pairs)


@given(st.text(st.characters(codec="utf-8")), st.booleans())
def test_text_comes_back_from_a_query_as_it_was(text: str, explode: bool) -> None:
    written = query(text, explode=explode)
    assert parse_qsl(written, keep_blank_values=True, strict_parsing=True) == [("p", text)]


@given(described("X-P", "header"), json_values)
def test_no_value_leaves_its_header(parameter: Parameter, value: Any) -> None:
    written = outcome(lambda: header_values([parameter], {"X-P": value}))
    if isinstance(written, CallError):
        assert written.code is ErrorCode.VALIDATION_ERROR
        return
    assert len(written) <= 1
    for _, text in written:
        assert text.isascii()
        assert not re.search(r"[\r\n\0]", text)
        text.encode("latin-1")


@given(described("p", "cookie"), json_values)
def test_no_value_leaves_its_cookie(parameter: Parameter, value: Any) -> None:
    written = outcome(lambda: cookie_header([parameter, Parameter("last", "cookie")], {"p": value, "last": 1}))
    if isinstance(written, CallError):
        assert written.code is ErrorCode.VALIDATION_ERROR
        return
    assert written is not None
    assert written.isascii()
    assert not re.search(r"[\r\n\0]", written)
    *pairs, last = [pair.partition("=")[0] for pair in written.split("; ")]
    assert last == "last"
    assert all(";" not in pair for pair in pairs)
    if not isinstance(value, (dict, list)):
        assert len(pairs) <= 1
