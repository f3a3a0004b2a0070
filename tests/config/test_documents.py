"""Line numbers of keys in TOML and JSON."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from operations.config.documents import json_lines, toml_lines, without_comments

TOML = '''
# [not.a.table]
top = 1

[a."b c".d]     # line 5
x = """
[not]
y = 1
"""
y = [
  "# not a comment", # a comment with ] in it
  { z = 1 },
]
'quoted' = 'it''s'
deep.er.key = 3

[[list]]        # line 17
n = 1
[list.sub]
m = 2
[[list]]        # line 21
n = 2
inline = { p = { q = 1 } }
'''.replace("'it''s'", "'its'")


def test_keys_of_toml() -> None:
    tomllib.loads(TOML)
    assert toml_lines(TOML) == {
        ("top",): 3,
        ("a",): 5,
        ("a", "b c"): 5,
        ("a", "b c", "d"): 5,
        ("a", "b c", "d", "x"): 6,
        ("a", "b c", "d", "y"): 10,
        ("a", "b c", "d", "quoted"): 14,
        ("a", "b c", "d", "deep"): 15,
        ("a", "b c", "d", "deep", "er"): 15,
        ("a", "b c", "d", "deep", "er", "key"): 15,
        ("list",): 17,
        ("list", 0): 17,
        ("list", 0, "n"): 18,
        ("list", 0, "sub"): 19,
        ("list", 0, "sub", "m"): 20,
        ("list", 1): 21,
        ("list", 1, "n"): 22,
        ("list", 1, "inline"): 23,
    }


@given(st.text(max_size=60))
def test_any_text_is_parsed_without_an_exception(text: str) -> None:
    toml_lines(text)
    without_comments(text)


JSON = """{
  // a comment, with "quotes"
  "a": {"b": [1,
    {"c": "// not a comment"},  /* over
    lines */
  ]},
  "d": null,
}"""


def test_keys_of_json_with_comments() -> None:
    import json

    plain = without_comments(JSON)
    assert json.loads(plain) == {"a": {"b": [1, {"c": "// not a comment"}]}, "d": None}
    lines = json_lines(plain)
    assert {key: lines[key] for key in [("a",), ("a", "b"), ("a", "b", 1, "c"), ("d",)]} == {
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", 1, "c"): 4,
        ("d",): 7,
    }
