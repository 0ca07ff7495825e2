import pytest

from podrace.cli.continuous.decisions import Poller, PollResult, ValidationScore, decide_champion, is_new

EMPTY: tuple[tuple[object, ...], ...] = ()
A, B = (("a", 1),), (("a", 2),)


@pytest.mark.parametrize(
    ("seen", "meaning"),
    [
        ([A, A], "soon read"),
        ([A, B, A, A], "soon soon soon read"),
        ([EMPTY, EMPTY, A, A], "later later soon read"),
        ([A, EMPTY, A, A], "soon soon soon read"),
        ([A, A, A, B, B, A, A], "soon read later soon read soon read"),
    ],
)
def test_data_is_read_after_two_polls_with_the_same_signature(
    seen: list[tuple[tuple[object, ...], ...]], meaning: str
) -> None:
    poller, results = Poller(), []
    for signature in seen:
        results.append(poller.observe(signature))
        if results[-1] is PollResult.READ:
            poller.mark_read(signature)
    assert " ".join(result.value for result in results) == meaning


def test_data_that_could_not_be_read_is_read_after_the_next_poll() -> None:
    poller = Poller()
    assert [poller.observe(A) for _ in range(3)] == [PollResult.SOON, PollResult.READ, PollResult.READ]


def test_each_version_is_new_only_once() -> None:
    assert is_new("c", decided=["a"], taken=["b"])
    assert not is_new("a", decided=["a"], taken=[])
    assert not is_new("b", decided=["a"], taken=["b"])


def score(mean: float, error: float) -> ValidationScore:
    return ValidationScore(mean, error, 64)


@pytest.mark.parametrize(
    ("challenger", "incumbent", "replaces", "reason"),
    [
        # The error of the difference is sqrt(3^2 + 4^2) = 5.
        (score(15.1, 3.0), score(10.0, 4.0), True, "ahead by 5.1, more than the standard error 5"),
        (score(15.0, 3.0), score(10.0, 4.0), False, "ahead by only 5, within the standard error 5"),
        (score(9.0, 0.1), score(10.0, 0.1), False, "not ahead: -1"),
        (score(10.0, 0.0), score(10.0, 0.0), False, "not ahead: +0"),
        (score(10.5, 0.0), score(10.0, 0.0), True, "ahead by 0.5, more than the standard error 0"),
    ],
)
def test_a_champion_is_replaced_if_the_challenger_is_ahead_by_more_than_the_standard_error(
    challenger: ValidationScore, incumbent: ValidationScore, replaces: bool, reason: str
) -> None:
    decision = decide_champion(challenger, incumbent)
    assert (decision.replaces, decision.reason) == (replaces, reason)
    assert decision.difference == pytest.approx(challenger.mean_return - incumbent.mean_return)


def test_the_first_challenger_becomes_champion_and_an_unscored_champion_stays() -> None:
    assert decide_champion(score(-5.0, 1.0), None).replaces
    decision = decide_champion(score(500.0, 1.0), None, incumbent_failure="no such option")
    assert not decision.replaces
    assert "no such option" in decision.reason
