import pytest

from podrace.errors import InvalidArgument
from podrace.progress_deadlines import ProgressDeadlines, check


@pytest.mark.parametrize(
    ("deadlines", "key"),
    [
        (ProgressDeadlines(multiple=0.5), "progress.multiple = 0.5"),
        (ProgressDeadlines(floor_seconds=0.0), "progress.floor_seconds = 0"),
        (ProgressDeadlines(floor_seconds=20.0, ceiling_seconds=10.0), "progress.floor_seconds = 20"),
    ],
)
def test_deadlines_that_make_no_sense_are_refused(deadlines: ProgressDeadlines, key: str) -> None:
    with pytest.raises(InvalidArgument, match=key):
        check(deadlines, "progress")
