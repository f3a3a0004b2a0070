from pathlib import Path

import pytest

from operations import CallError
from operations.config import find_config, load_config
from tests.config.files import write


def test_the_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) == path
    project = write(tmp_path / "a", "[tool.operations]", "pyproject.toml")
    assert find_config(below) == project
    own = write(below, "")
    assert find_config(below) == own


def test_a_project_file_without_our_table_is_passed_by(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    write(tmp_path / "a", "[project]\nname = 'operations'", "pyproject.toml")
    write(tmp_path / "a" / "b", "operations = not toml", "pyproject.toml")
    assert find_config(tmp_path / "a" / "b") == path


def test_its_own_file_goes_before_the_project_file(tmp_path: Path) -> None:
    write(tmp_path, "[tool.operations]", "pyproject.toml")
    own = write(tmp_path, "")
    assert find_config(tmp_path) == own


def test_a_missing_configuration_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config() is None
    with pytest.raises(CallError, match="run `ops init` to create one"):
        load_config()


def test_a_directory_means_the_file_in_it(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    assert load_config(tmp_path).path == path
