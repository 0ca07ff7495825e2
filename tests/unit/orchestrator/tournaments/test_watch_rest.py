import pytest

from orchestrator.tournaments.watch_rest import watch_rest


@pytest.mark.parametrize("watchers", [1, 2, 32, 1000])
@pytest.mark.parametrize("built", [0.0001, 0.01, 1.0])
def test_all_watchers_together_take_at_most_a_ninth_of_the_time(watchers: int, built: float) -> None:
    cycle = built + watch_rest(built, built, watchers)
    assert watchers * built / cycle <= 1 / 9


def test_a_message_that_waited_for_others_is_followed_by_as_long_a_rest_as_before() -> None:
    assert watch_rest(0.2, 0.01, 1) == pytest.approx(1.8)
    assert watch_rest(0.0, 0.0, 50) == 0.0
