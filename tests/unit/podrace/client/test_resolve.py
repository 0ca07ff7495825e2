import pytest

from podrace.client.resolve import (
    looks_like_candidate,
    resolve_agent,
    resolve_candidate,
    resolve_name,
    resolve_tournament,
)
from podrace.errors import InvalidArgument, NotFound

IDS = ["stocks-zz9", "cartpole-bbb", "cartpole-aaa", "foo-a12345"]


@pytest.mark.parametrize(
    ("text", "tournament_id"),
    [("latest", "stocks-zz9"), ("s", "stocks-zz9"), ("cartpole-a", "cartpole-aaa"), ("foo-a12345", "foo-a12345")],
)
def test_a_tournament_is_named_by_its_id_a_prefix_or_latest(text: str, tournament_id: str) -> None:
    assert resolve_tournament(text, IDS, where="home") == tournament_id


def test_an_id_that_is_a_prefix_of_another_names_itself() -> None:
    assert resolve_tournament("a-1", ["a-12", "a-1"], where="home") == "a-1"


def test_an_ambiguous_prefix_is_refused_with_its_matches() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'cartpole' is ambiguous, it matches 2: cartpole-bbb, cartpole-aaa; use a longer prefix"
    ):
        resolve_tournament("cartpole", IDS, where="home")


def test_an_empty_text_does_not_name_the_only_one() -> None:
    with pytest.raises(InvalidArgument, match="tournament: empty"):
        resolve_tournament("", ["only"], where="home")
    with pytest.raises(InvalidArgument, match="candidate: empty"):
        resolve_candidate("", ["0a1b2c"], where="home")
    with pytest.raises(InvalidArgument, match="log: empty"):
        resolve_name("", ["leaderboard"], "log", where="home")


def test_an_unknown_id_is_refused_with_a_similar_one() -> None:
    with pytest.raises(NotFound, match=r"home: unknown tournament 'cartpoel-bbb'; did you mean 'cartpole-bbb'\?"):
        resolve_tournament("cartpoel-bbb", IDS, where="home")


def test_without_a_similar_id_only_the_newest_are_listed() -> None:
    with pytest.raises(NotFound) as refusal:
        resolve_tournament("q", [f"t{number}" for number in range(100)], where="home")
    assert refusal.value.message.endswith("known: t0, t1, t2, t3, t4, t5, t6, t7")


def test_latest_is_an_error_without_tournaments() -> None:
    with pytest.raises(NotFound, match=r"home: there are no tournaments"):
        resolve_tournament("latest", [], where="home")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("stocks-zz9-a3", ("stocks-zz9", "stocks-zz9-a3")),
        ("latest-a12", ("stocks-zz9", "stocks-zz9-a12")),
        ("cartpole-b-a0", ("cartpole-bbb", "cartpole-bbb-a0")),
        ("foo-a12345", None),
        ("foo-a12345-a1", ("foo-a12345", "foo-a12345-a1")),
        ("cartpole-a1", None),
        ("nothing-a1", None),
        ("latest", None),
    ],
)
def test_an_agent_is_named_by_its_tournament_and_number(text: str, found: tuple[str, str] | None) -> None:
    assert resolve_agent(text, IDS) == found


def test_candidates_are_named_by_prefixes_of_digests() -> None:
    assert looks_like_candidate("0a1b2c")
    assert not looks_like_candidate("stocks")
    assert not looks_like_candidate("0a1")
    assert resolve_candidate("0a1b", ["0a1b2c", "ffff"], where="home") == "0a1b2c"
    with pytest.raises(InvalidArgument, match="matches 2"):
        resolve_candidate("0a1b", ["0a1b2c", "0a1bff"], where="home")
