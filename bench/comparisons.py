"""Comparisons of the benchmarks: measured figures and their targets.

Each benchmark saves its comparisons in `bench/results/comparisons.json`, by Python version.
`python -m bench.comparisons` lists those that miss their target. With `--publish` it copies all of them to
`docs/benchmarks.json`, and draws the table and the picture of the documentation from that file.
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
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
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
    """One figure: our cost or rate against a peer or a limit.

    `kind` is the unit of `value`: `time`, our time divided by the other's; `faster`, the other's time divided by ours;
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
        """Whether the figure misses its target."""
        too_much = self.at_most is not None and self.value > self.at_most
        too_little = self.at_least is not None and self.value < self.at_least
        return too_much or too_little

    @property
    def target(self) -> str:
        """The target as text."""
        if self.at_most is not None:
            return f"at most {self.at_most:,g}"
        return f"at least {self.at_least:,g}" if self.at_least is not None else ""

    @property
    def result(self) -> str:
        """The figure as text."""
        return _FORMS[self.kind].format(number(self.value))


def number(value: float) -> str:
    """Format a figure with its significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.2g}"


def keep(benchmark: str, comparisons: Iterable[Comparison], path: Path = KEPT) -> None:
    """Print the comparisons and replace the saved ones of this benchmark and Python version."""
    rows = list(comparisons)
    print()
    for each in rows:
        target = f"  ({'MISSED, ' if each.short else ''}target: {each.target})" if each.target else ""
        print(f"  {each.work}, against {each.against}: {each.result}{target}")
    results = read(path)
    results.setdefault(version(), {})[benchmark] = rows
    path.parent.mkdir(exist_ok=True)
    write(results, path)


def read(path: Path) -> Results:
    """Read saved results, by Python version and benchmark."""
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
    """Return the running Python version, for example "3.13"."""
    return ".".join(platform.python_version_tuple()[:2])


def list_short(results: Results) -> Iterator[str]:
    """Yield a line for each figure that misses its target."""
    for python, benchmarks in results.items():
        for name, rows in benchmarks.items():
            for each in rows:
                if each.short:
                    yield f"{python}  {name}: {each.work}, against {each.against}: {each.result}; target: {each.target}"


def table(results: Results) -> str:
    """Return the table of the documentation, with a column for each Python version and without absolute times."""
    versions = sorted(results)
    lines = [
        "| Work | Against | " + " | ".join(versions) + " | Target | Run |",
        "|---|---|" + "---|" * len(versions) + "---|---|",
    ]
    for name, work, against in _keys(results):
        found = {python: _find(results[python].get(name, []), work, against) for python in versions}
        target = next(each.target for each in found.values() if each is not None)
        cells = (_cell(each) for each in found.values())
        lines.append(f"| {work} | {against} | " + " | ".join(cells) + f" | {target} | `{name}` |")
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
    """Return the page with its table replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


def publish(results: Results, path: Path = PUBLISHED, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Add results to the published ones, and write the table and the picture of the documentation."""
    from bench.pictures.benchmarks import draw_all  # imported here, because that module imports this one

    published = read(path)
    for python, benchmarks in results.items():
        published.setdefault(python, {}).update(benchmarks)
    write(published, path)
    page.write_text(page_with(page.read_text(), published))
    for name, picture in draw_all(published).items():
        (pictures / name).write_text(picture)


def main() -> None:
    """List the figures that miss their target; publish all with `--publish`."""
    results = read(KEPT)
    if "--publish" in sys.argv[1:]:
        publish(results)
        print(f"wrote {PUBLISHED.name}, {PAGE.name} and the picture")
    count = sum(len(rows) for benchmarks in results.values() for rows in benchmarks.values())
    short = list(list_short(results))
    print(f"\n{len(short)} of {count} figures miss their target", *short, sep="\n  ")


if __name__ == "__main__":
    main()
