from io import StringIO

from rich.console import Console

from podrace.cli.continuous import journal, tables


def test_the_reason_of_a_failure_is_shown_in_full() -> None:
    reason = "tournament race-v1 failed: prices.npz cannot be read as an array file"
    entry = journal.JournalEntry("abc" * 20, 1.0, 2.0, "failed", reason, 1, "race-a-rather-long-name-v1-abc123")
    state = journal.JournalState("race", "prices.npz", "ab12", history=(entry,))
    screen = Console(width=100, file=StringIO())
    screen.print(tables.overview(state, None))
    assert f"failed: {reason}" in screen.file.getvalue()
