"""Importing a user's function: every way in which it can fail has one clear error."""

import sys
from pathlib import Path

import pytest

from podrace.errors import InvalidArgument
from podrace.plugins import loader


def test_a_function_is_found_by_its_path() -> None:
    assert loader.load("podrace.plugins.loader", "load") is loader.load


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError('no\\nidea')", "module 'mine' cannot be imported (ValueError: no"),
        ("def (", "module 'mine' cannot be imported (SyntaxError: "),
        ("import sys; sys.exit(3)", "module 'mine' cannot be imported (SystemExit: 3); is it on PYTHONPATH?"),
        (
            "import nowhere_at_all",
            "(ModuleNotFoundError: No module named 'nowhere_at_all'); is it on PYTHONPATH?"
            f" This Python has the packages of {sys.prefix}",
        ),
        ("score = 3", "module 'mine' has no function 'score'"),
    ],
)
def test_a_module_that_fails_or_lacks_the_function_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(InvalidArgument) as caught:
        loader.load("mine", "score")
    sys.modules.pop("mine", None)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("module", "function", "reason"),
    [
        ("nowhere_at_all", "f", "ERROR_REASON_BAD_SPEC"),
        ("podrace.nowhere.at_all", "f", "ERROR_REASON_BAD_SPEC"),
        ("podrace.plugins.loader", "laod", "ERROR_REASON_BAD_SPEC"),
        ("mine", "score", ""),
    ],
)
def test_only_a_missing_module_or_function_has_the_reason_bad_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, function: str, reason: str
) -> None:
    (tmp_path / "mine.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        loader.load(module, function)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("error", "text"), [(KeyError(), "KeyError"), (OSError("gone"), "OSError: gone")])
def test_an_exception_is_described_by_its_type_and_message(error: Exception, text: str) -> None:
    assert loader.describe_exception(error) == text
