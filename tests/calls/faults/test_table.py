"""Every fault scenario is shown by a test, on every transport that it concerns."""

from __future__ import annotations

from tests.calls.faults.collecting import ROOT, collect
from tests.calls.faults.scenarios import SCENARIOS, table


def test_every_scenario_is_shown_on_every_transport_that_it_concerns() -> None:
    shown = collect()
    assert list(SCENARIOS) == list(range(1, 45))
    missing = {
        number: [transport for transport in scenario.transports if transport not in shown.get(number, {})]
        for number, scenario in SCENARIOS.items()
    }
    assert {number: transports for number, transports in missing.items() if transports} == {}
    assert shown.keys() <= SCENARIOS.keys()


def test_the_guide_shows_the_scenarios_as_they_are() -> None:
    assert table() in (ROOT / "docs" / "guide" / "faults.md").read_text()
