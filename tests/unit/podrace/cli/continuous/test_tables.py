from io import StringIO

from rich.console import Console

from podrace.cli.continuous import state, tables


def test_why_a_version_came_to_nothing_is_told_in_whole_lines() -> None:
    reason = "tournament race-v1 failed: prices.npz cannot be read as an array file"
    entry = state.Entry("abc" * 20, 1.0, 2.0, "failed", reason, 1, "race-a-rather-long-name-v1-abc123")
    memory = state.Memory("race", "prices.npz", "ab12", history=(entry,))
    screen = Console(width=100, file=StringIO())
    screen.print(tables.overview(memory, None))
    assert f"failed: {reason}" in screen.file.getvalue()
