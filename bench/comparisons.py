"""What the benchmarks compare, what was measured and what is wanted.

Each benchmark keeps its comparisons in `bench/results/comparisons.json`, by Python version.
`python -m bench.comparisons` says which fall short; with `--publish` it copies all of them to `docs/benchmarks.json`,
from which the table and the picture of the documentation are drawn.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

KEPT = Path(__file__).parent / "results" / "comparisons.json"
PUBLISHED = Path(__file__).parents[1] / "docs" / "benchmarks.json"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- begin: python -m bench.comparisons --publish -->", "<!-- end -->"

Kind = Literal["time", "faster", "rate", "bytes", "seconds"]
Results = dict[str, dict[str, list["Comparison"]]]

_FORMS: dict[Kind, str] = {
    "time": "{} times its time",
    "faster": "{} times as fast",
    "rate": "{} of its rate",
    "bytes": "{} bytes",
    "seconds": "{} s",
}


@dataclass(frozen=True)
class Comparison:
    """One figure: work of ours against a peer or a limit.

    `kind` says what `value` is: `time`, our time divided by the other's; `faster`, the other's time divided by ours;
    `rate`, our rate divided by the other's; `bytes` and `seconds`, a figure of ours alone.
    """

    work: str
    against: str
    kind: Kind
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def short(self) -> bool:
        """Whether the figure is not what is wanted."""
        too_much = self.at_most is not None and self.value > self.at_most
        too_little = self.at_least is not None and self.value < self.at_least
        return too_much or too_little

    @property
    def wanted(self) -> str:
        """The limit, in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:,g}"
        return f"at least {self.at_least:,g}" if self.at_least is not None else ""

    @property
    def result(self) -> str:
        """The figure, in words."""
        return _FORMS[self.kind].format(number(self.value))


def number(value: float) -> str:
    """A figure with as many digits as say something."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.2g}"


def keep(benchmark: str, comparisons: Iterable[Comparison], path: Path = KEPT) -> None:
    """Print the comparisons; replace what was kept of the benchmark under this version of Python."""
    rows = list(comparisons)
    print()
    for each in rows:
        wanted = f"  ({'SHORT, ' if each.short else ''}wanted: {each.wanted})" if each.wanted else ""
        print(f"  {each.work}, against {each.against}: {each.result}{wanted}")
    results = read(path)
    results.setdefault(version(), {})[benchmark] = rows
    path.parent.mkdir(exist_ok=True)
    write(results, path)


def read(path: Path) -> Results:
    """Read what was kept: by Python version, then by benchmark."""
    if not path.exists():
        return {}
    return {
        python: {name: [Comparison(**each) for each in rows] for name, rows in benchmarks.items()}
        for python, benchmarks in json.loads(path.read_text()).items()
    }


def write(results: Results, path: Path) -> None:
    """Write results in a stable order."""
    plain = {
        python: {name: [asdict(each) for each in rows] for name, rows in sorted(benchmarks.items())}
        for python, benchmarks in sorted(results.items())
    }
    path.write_text(json.dumps(plain, indent=1) + "\n")


def version() -> str:
    """The Python version that is measured, for example "3.13"."""
    return ".".join(platform.python_version_tuple()[:2])


def list_short(results: Results) -> Iterator[str]:
    """Say which figures are not what is wanted."""
    for python, benchmarks in results.items():
        for name, rows in benchmarks.items():
            for each in rows:
                if each.short:
                    yield f"{python}  {name}: {each.work}, against {each.against}: {each.result}; wanted: {each.wanted}"


def table(results: Results) -> str:
    """The table of the documentation: a column for each Python version. Times of one machine are left out."""
    versions = sorted(results)
    lines = [
        "| Work | Against | " + " | ".join(versions) + " | Target | Run |",
        "|---|---|" + "---|" * len(versions) + "---|---|",
    ]
    for name, work, against in _keys(results):
        found = {python: _find(results[python].get(name, []), work, against) for python in versions}
        wanted = next(each.wanted for each in found.values() if each is not None)
        cells = (_cell(each) for each in found.values())
        lines.append(f"| {work} | {against} | " + " | ".join(cells) + f" | {wanted} | `{name}` |")
    return "\n".join(lines)


def _keys(results: Results) -> dict[tuple[str, str, str], None]:
    return {
        (name, each.work, each.against): None
        for benchmarks in results.values()
        for name, rows in benchmarks.items()
        for each in rows
        if each.kind != "seconds"
    }


def _find(rows: list[Comparison], work: str, against: str) -> Comparison | None:
    return next((each for each in rows if (each.work, each.against) == (work, against)), None)


def _cell(comparison: Comparison | None) -> str:
    if comparison is None:
        return "not measured"
    return f"**{comparison.result}**" if comparison.short else comparison.result


def page_with(page: str, results: Results) -> str:
    """The page of the documentation with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


def main() -> None:
    """List what falls short; publish where asked."""
    results = read(KEPT)
    if "--publish" in sys.argv[1:]:
        published = read(PUBLISHED)
        for python, benchmarks in results.items():
            published.setdefault(python, {}).update(benchmarks)
        write(published, PUBLISHED)
        PAGE.write_text(page_with(PAGE.read_text(), read(PUBLISHED)))
        print(f"{PUBLISHED.name} and {PAGE.name} are written; draw the picture with `python -m bench.pictures`")
    count = sum(len(rows) for benchmarks in results.values() for rows in benchmarks.values())
    short = list(list_short(results))
    print(f"\n{len(short)} of {count} figures fall short of what is wanted", *short, sep="\n  ")


if __name__ == "__main__":
    main()
