"""Print which tests show which fault on which transport: `python -m tests.calls.faults`."""

import sys

from tests.calls.faults.collecting import collect
from tests.calls.faults.scenarios import SCENARIOS


def main() -> None:
    """Print the table."""
    shown = collect()
    for number, scenario in SCENARIOS.items():
        sys.stdout.write(f"{number:>2}  {scenario.fault}: {scenario.promise}\n")
        for transport in scenario.transports:
            names = shown.get(number, {}).get(transport, ["NOTHING"])
            sys.stdout.writelines(f"      {transport:<10} {name}\n" for name in names)


if __name__ == "__main__":
    main()
