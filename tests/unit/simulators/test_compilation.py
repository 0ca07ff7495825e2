"""What is logged of a block in which a simulator may compile."""

from typing import Any

import pytest

from podrace.errors import DeadlineExceeded
from simulators import compilation
from simulators.compilation import compiling, is_compiling


def test_a_long_block_is_logged_unless_it_fails(log_lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "LONG_SECONDS", 0.0)
    with compiling("Isaac Lab"):
        assert is_compiling()
    (line,) = log_lines
    assert (line["event"], line["what"]) == ("a simulator has started or compiled", "Isaac Lab")
    with pytest.raises(DeadlineExceeded), compiling("Isaac Lab"):
        raise DeadlineExceeded("no answer")
    assert len(log_lines) == 1
    assert not is_compiling()
