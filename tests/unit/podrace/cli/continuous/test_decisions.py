import pytest

from podrace.cli.continuous.decisions import Look, Looks, Score, is_news, judge

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
def test_data_is_read_once_two_looks_have_shown_the_same(
    seen: list[tuple[tuple[object, ...], ...]], meaning: str
) -> None:
    looks, said = Looks(), []
    for signature in seen:
        said.append(looks.look(signature))
        if said[-1] is Look.READ:
            looks.read(signature)
    assert " ".join(look.value for look in said) == meaning


def test_what_could_not_be_read_is_read_at_the_next_look() -> None:
    looks = Looks()
    assert [looks.look(A) for _ in range(3)] == [Look.SOON, Look.READ, Look.READ]


def test_a_version_is_acted_on_once_whatever_the_data_goes_back_to() -> None:
    assert is_news("c", decided=["a"], taken=["b"])
    assert not is_news("a", decided=["a"], taken=[])
    assert not is_news("b", decided=["a"], taken=["b"])


def score(mean: float, error: float) -> Score:
    return Score(mean, error, 64)


@pytest.mark.parametrize(
    ("challenger", "incumbent", "replaces", "reason"),
    [
        # The error of the difference is sqrt(3^2 + 4^2) = 5.
        (score(15.1, 3.0), score(10.0, 4.0), True, "ahead by 5.1, more than the error of that, 5"),
        (score(15.0, 3.0), score(10.0, 4.0), False, "ahead by 5 only, within the error of that, 5"),
        (score(9.0, 0.1), score(10.0, 0.1), False, "not ahead: -1"),
        (score(10.0, 0.0), score(10.0, 0.0), False, "not ahead: +0"),
        (score(10.5, 0.0), score(10.0, 0.0), True, "ahead by 0.5, more than the error of that, 0"),
    ],
)
def test_a_champion_is_replaced_by_whom_is_ahead_by_more_than_the_error(
    challenger: Score, incumbent: Score, replaces: bool, reason: str
) -> None:
    judgement = judge(challenger, incumbent)
    assert (judgement.replaces, judgement.reason) == (replaces, reason)
    assert judgement.difference == pytest.approx(challenger.mean_return - incumbent.mean_return)


def test_the_first_needs_to_beat_nobody_and_nobody_is_replaced_unseen() -> None:
    assert judge(score(-5.0, 1.0), None).replaces
    judgement = judge(score(500.0, 1.0), None, incumbent_failure="no such option")
    assert not judgement.replaces
    assert "no such option" in judgement.reason
