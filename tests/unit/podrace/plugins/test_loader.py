"""What becomes of an import path that a user wrote, whatever is there."""

import sys
from pathlib import Path

import pytest

from podrace.errors import InvalidArgument
from podrace.plugins import loader


def test_a_function_is_found_by_its_path() -> None:
    assert loader.load("podrace.plugins.loader", "load") is loader.load


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no\\nidea')", "module 'mine' cannot be imported (ValueError: no"),
        ("def (", "module 'mine' cannot be imported (SyntaxError: "),
        ("import sys; sys.exit(3)", "module 'mine' cannot be imported (SystemExit: 3); is it on PYTHONPATH?"),
        ("import nowhere_at_all", "(ModuleNotFoundError: No module named 'nowhere_at_all'); is it on PYTHONPATH?"),
        ("score = 3", "module 'mine' has no function 'score'"),
    ],
)
def test_whatever_a_module_does_instead_of_holding_the_function_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(InvalidArgument) as caught:
        loader.load("mine", "score")
    sys.modules.pop("mine", None)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("module", "function", "reason"),
    [
        ("nowhere_at_all", "f", "ERROR_REASON_BAD_SPEC"),
        ("podrace.nowhere.at_all", "f", "ERROR_REASON_BAD_SPEC"),
        ("podrace.plugins.loader", "laod", "ERROR_REASON_BAD_SPEC"),
        ("mine", "score", ""),
    ],
)
def test_what_does_not_exist_is_told_from_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, function: str, reason: str
) -> None:
    (tmp_path / "mine.py").write_text("import nowhere_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        loader.load(module, function)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("error", "text"), [(KeyError(), "KeyError"), (OSError("gone"), "OSError: gone")])
def test_what_was_raised_is_shown_by_its_kind_and_words(error: Exception, text: str) -> None:
    assert loader.shown(error) == text
