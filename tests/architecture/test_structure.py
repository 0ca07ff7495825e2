"""The source tree keeps its rules, and each rule is found broken where it is broken."""

from collections.abc import Callable
from pathlib import Path

import pytest
import rules

REPOSITORY = Path(__file__).parents[2]

OWN_MODULES = {
    "agentpod/process/wiring.py": "imports our own modules and torch before the first fork",
    "agentpod/qualification/part_process.py": "imports one of its own parts by name",
    "podrace/cli/application.py": "imports a command when it is used",
    "podrace/conformance/examine.py": "imports the requirements of one contract",
    "leaderboard/generator.py": "asks whether the library of a strategy is installed",
    "simulators/__init__.py": "imports the module of a simulator from our own registry",
    "simulators/isaac/server/__main__.py": "runs in an interpreter without podrace",
    "simulators/isaac/server/serving.py": "runs in an interpreter without podrace",
}
"""Modules that import by a computed name what is not user code, and why."""


def test_files_are_short():
    assert not rules.long_files(REPOSITORY)


def test_functions_are_short():
    assert not rules.long_functions(REPOSITORY)


def test_packages_are_small():
    assert not rules.large_packages(REPOSITORY)


def test_modules_are_named_for_their_content():
    assert not rules.catch_all_modules(REPOSITORY)


def test_a_class_name_has_one_meaning_in_a_package():
    assert not rules.repeated_classes(REPOSITORY)


def test_generated_and_written_packages_differ_by_more_than_a_plural():
    assert not rules.packages_apart_by_a_plural(REPOSITORY)


def test_a_package_that_lists_its_modules_lists_all_of_them():
    assert not rules.stale_listings(REPOSITORY)


def test_sql_lies_in_the_modules_that_hold_the_databases():
    assert not rules.sql_elsewhere(REPOSITORY)


def test_user_code_is_imported_by_the_plugins_package_only():
    assert {place.partition(":")[0] for place in rules.user_code_elsewhere(REPOSITORY)} == OWN_MODULES.keys()


def test_messages_of_errors_are_printed_with_control_characters_escaped():
    assert not rules.unescaped_prints(REPOSITORY)


LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 41
LISTED = {"podrace/a/b.py": "", "podrace/a/c.py": ""}
BROKEN: list[tuple[Callable[[Path], object], dict[str, str]]] = [
    (rules.long_files, {"podrace/a.py": "x = 1\n" * 401}),
    (rules.long_functions, {"podrace/a.py": LONG_FUNCTION}),
    (rules.large_packages, {f"podrace/a{number}.py": "" for number in range(21)}),
    (rules.catch_all_modules, {"agentpod/utils.py": ""}),
    (rules.repeated_classes, {"podrace/a.py": "class Lease: ...", "podrace/b/c.py": "class Lease: ..."}),
    (rules.stale_listings, {"podrace/a/__init__.py": '"""A.\n\nb.py  b\nc.py  c\n"""\n', "podrace/a/b.py": ""}),
    (
        rules.stale_listings,
        {**LISTED, "podrace/a/__init__.py": '"""A.\n\nb.py  b\nc.py  c\n"""\n', "podrace/a/d/__init__.py": ""},
    ),
    (rules.stale_listings, {**LISTED, "podrace/a/__init__.py": '"""A.\n\nb.py  b\nc.py  c\nd/    d\n"""\n'}),
    (rules.packages_apart_by_a_plural, {"podrace/tensor/v1.py": "", "podrace/tensors/a.py": ""}),
    (rules.sql_elsewhere, {"orchestrator/pool/a.py": 'rows = execute("SELECT * FROM pods")'}),
    (rules.sql_elsewhere, {"orchestrator/pool/a.py": 'condition = "pod_id = ? AND phase != ?"'}),
    (rules.sql_elsewhere, {"orchestrator/pool/a.py": 'column = "(SELECT owner FROM ownerships)"'}),
    (rules.sql_elsewhere, {"orchestrator/pool/a.py": 'order = "cores DESC ORDER BY start_time"'}),
    (rules.user_code_elsewhere, {"agentpod/a.py": "importlib.import_module(name)"}),
    (rules.user_code_elsewhere, {"agentpod/a.py": "import_module(name)"}),
    (rules.unescaped_prints, {"agentpod/a.py": "print(f'error: {error.message}')"}),
]
KEPT = {
    "podrace/a.py": "x = 1\n" * 400,
    "podrace/b.py": 'def f():\n    """' + "Text.\n" * 100 + '"""\n' + "    x = 1\n" * 30,
    "podrace/c.py": "class Lease: ...",
    "podrace/listed/__init__.py": '"""A.\n\n  b.py  b; c.py  c\n  d.py, e/f.py\n  g/    g\n"""\n',
    **{f"podrace/listed/{name}.py": "" for name in ("b", "c", "d", "e/f", "g/__init__")},
    "leaderboard/c.py": "class Lease: ...",
    "orchestrator/state/a.py": 'rows = execute("SELECT * FROM pods")',
    "podrace/plugins/a.py": "importlib.import_module(name)",
    "agentpod/a.py": 'importlib.import_module("torch")',
    "agentpod/b.py": "print(f'error: {printable(error.message)}')",
    **{f"simulators/a{number}.py": "" for number in range(20)},
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(("rule", "files"), BROKEN, ids=[rule.__name__ for rule, _ in BROKEN])
def test_a_broken_rule_is_found(tmp_path: Path, rule: Callable[[Path], object], files: dict[str, str]):
    assert rule(write(tmp_path, files))


@pytest.mark.parametrize("rule", [rule for rule, _ in BROKEN], ids=[rule.__name__ for rule, _ in BROKEN])
def test_a_tree_that_keeps_the_rules_is_not_reported(tmp_path: Path, rule: Callable[[Path], object]):
    assert not rule(write(tmp_path, KEPT))
