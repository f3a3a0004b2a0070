"""Operations that are not used take little memory: sources have thousands, of which a program calls a few."""

import pytest

from bench import memory


@pytest.mark.parametrize("build", [memory.functions, memory.endpoints])
def test_an_operation_takes_at_most_two_kilobytes_before_its_first_use(
    build: memory.Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "COUNT", 2_000)
    _, size = memory.measure(build)
    assert size <= 2_048
