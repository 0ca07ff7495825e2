"""Tests that installed distributions offer algorithms."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrace.plugins import entry_points
from podrace.plugins.address import PythonFunction


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for distribution, module in (("beta", "beta.walks"), ("alpha", "alpha.walks")):
        folder = tmp_path / f"{distribution}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[podrace.algorithms]\nwalk = {module}:Walk\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    entry_points.installed.cache_clear()
    yield tmp_path
    entry_points.installed.cache_clear()


def test_a_name_is_the_class_of_the_first_distribution_that_offers_it(site: Path) -> None:
    assert entry_points.installed() == {"walk": "alpha.walks:Walk"}
    assert entry_points.class_of("walk") == PythonFunction("alpha.walks", "Walk")


def test_a_module_needs_no_entry_point_and_other_names_are_no_class(site: Path) -> None:
    assert entry_points.class_of("python:mine.walks:Walk") == PythonFunction("mine.walks", "Walk")
    assert entry_points.class_of("run") is None
    assert entry_points.class_of("python:mine") is None
