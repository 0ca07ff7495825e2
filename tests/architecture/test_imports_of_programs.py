"""Programs that no other check imports (benchmarks, examples, tools) import names that exist."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest
from rules import PACKAGES

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = sorted(
    path.relative_to(REPOSITORY)
    for folder in ("benchmarks", "examples", "docs/tools", "deploy")
    for path in (REPOSITORY / folder).rglob("*.py")
)


def names_of_the_project(path: Path) -> list[tuple[str, str]]:
    """Every name that a program imports from the packages of this repository, wherever the import stands."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES
        for alias in node.names
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_program_imports_names_that_exist(program: Path):
    missing = [
        f"{module}.{name}"
        for module, name in names_of_the_project(REPOSITORY / program)
        if not hasattr(importlib.import_module(module), name) and not importlib.util.find_spec(f"{module}.{name}")
    ]
    assert not missing
