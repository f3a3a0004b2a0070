"""The official JSON Schema test suite, its required tests, through `Schema.check`."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from operations.schema import from_schema

DRAFTS = {
    "draft4": "draft4",
    "draft6": "draft6",
    "draft7": "draft7",
    "draft2019-09": "2019-09",
    "draft2020-12": "2020-12",
}
_REMOTES = "http://localhost:1234/"


def archive() -> Path | None:
    """The suite's archive, from the variable or its directory."""
    place = os.environ.get("OPERATIONS_TEST_SUITES")
    if not place:
        return None
    path = Path(place)
    return path / "json_schema_suite.tar.xz" if path.is_dir() else path


def documents(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as tar:
        members = [member for member in tar if member.name.endswith(".json")]
        return {m.name.removeprefix("./"): json.load(tar.extractfile(m)) for m in members}  # type: ignore[arg-type]


def groups(suite: dict[str, Any], draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, content in sorted(suite.items()):
        folder, _, file = name.rpartition("/")
        if folder == f"tests/{draft}":
            yield from ((file, group) for group in content)


def load_from(suite: dict[str, Any]) -> Callable[[str], Any]:
    """A loader of the documents that tests of the suite refer to."""
    return lambda uri: suite["remotes/" + uri.partition("#")[0].removeprefix(_REMOTES)]


@pytest.mark.slow
def test_required_tests(capsys: pytest.CaptureFixture[str]) -> None:
    path = archive()
    if path is None or not path.exists():
        pytest.skip("OPERATIONS_TEST_SUITES does not name the JSON Schema test suite (json_schema_suite.tar.xz)")
    suite = documents(path)
    load = load_from(suite)
    failures: list[str] = []
    counts = dict.fromkeys(DRAFTS, 0)
    for draft, dialect in DRAFTS.items():
        for file, group in groups(suite, draft):
            schema = from_schema(group["schema"], dialect=dialect, loader=load)
            for test in group["tests"]:
                counts[draft] += 1
                if schema.check(test["data"]) is not test["valid"]:
                    failures.append(f"{draft}/{file}: {group['description']}: {test['description']}")
    with capsys.disabled():
        print(f"\nJSON Schema suite, required tests passed by draft: {counts}")  # noqa: T201
    assert not failures
    assert all(count > 0 for count in counts.values())
