"""The figures of the documentation come from the published results, and a figure that misses its target is marked."""

from pathlib import Path

from bench.comparisons import (
    BEGIN,
    END,
    PAGE,
    PUBLISHED,
    Comparison,
    keep,
    list_short,
    page_with,
    publish,
    read,
    version,
)

SLOW = Comparison("Work", "a peer", "time", 3.0, at_most=2)
FAST = Comparison("Work", "another peer", "faster", 30.0, at_least=20)


def test_the_table_of_the_documentation_is_drawn_from_the_published_results() -> None:
    page = PAGE.read_text()
    assert page == page_with(page, read(PUBLISHED)), "run `python -m bench.comparisons --publish`"


def test_figures_that_fall_short_are_listed() -> None:
    (line,) = list_short({"3.11": {"bench.work": [SLOW, FAST]}})
    assert line == "3.11  bench.work: Work, against a peer: 3.00 times its time; target: at most 2"


def test_a_benchmark_replaces_its_own_figures_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    keep("bench.one", [SLOW], path)
    keep("bench.two", [FAST], path)
    keep("bench.one", [FAST], path)
    assert read(path) == {version(): {"bench.one": [FAST], "bench.two": [FAST]}}


def test_publishing_writes_results_table_and_picture(tmp_path: Path) -> None:
    published, page = tmp_path / "benchmarks.json", tmp_path / "benchmarks.md"
    page.write_text(f"Before\n{BEGIN}\n{END}\nAfter\n")
    publish({"3.11": {"bench.one": [SLOW]}}, published, page, tmp_path)
    publish({"3.13": {"bench.two": [FAST]}}, published, page, tmp_path)
    assert read(published) == {"3.11": {"bench.one": [SLOW]}, "3.13": {"bench.two": [FAST]}}
    assert "| Work | a peer | **3.00 times its time** | not measured | at most 2 | `bench.one` |" in page.read_text()
    assert page.read_text().endswith("After\n")
    for theme in ("light", "dark"):
        assert "another peer" in (tmp_path / f"benchmarks-{theme}.svg").read_text()
