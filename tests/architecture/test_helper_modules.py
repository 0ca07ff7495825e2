"""Helper modules of tests have distinct names, because the folders of `pythonpath` are searched in order."""

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_two_folders_of_the_search_path_have_a_module_of_the_same_name() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = Counter(
        path.name
        for folder in options["pythonpath"]
        for path in (ROOT / folder).glob("*.py")
        if path.name != "conftest.py" and not path.name.startswith("test_")
    )
    assert not {name for name, count in names.items() if count > 1} - {"__init__.py"}
