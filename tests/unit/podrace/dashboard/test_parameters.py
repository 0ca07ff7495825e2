"""Every parameter of a request is bounded."""

import pytest

from podrace.dashboard import parameters
from podrace.dashboard.changing import pool_limits, specification_of
from podrace.dashboard.curves import Curves
from podrace.errors import InvalidArgument


@pytest.mark.parametrize("text", ["../x", "a b", "x" * 300, "<b>", "a/b"])
def test_what_is_no_id_is_refused(text):
    with pytest.raises(InvalidArgument, match="expected the id"):
        parameters.identity({"agent": text}, "agent")


def test_a_required_id_may_not_be_missing():
    assert parameters.identity({}, "agent") == ""
    with pytest.raises(InvalidArgument):
        parameters.identity({}, "agent", required=True)


@pytest.mark.parametrize("text", ["-1", "501", "1e3", "٣", "9" * 5000, "x"])
def test_a_number_outside_of_its_range_is_refused(text):
    with pytest.raises(InvalidArgument, match="from 1 to 500"):
        parameters.whole({"limit": text}, "limit", default=100, low=1, high=500)


@pytest.mark.parametrize("text", ["nan", "inf", "x", "1,5"])
def test_a_position_that_is_no_finite_number_is_refused(text):
    with pytest.raises(InvalidArgument, match="expected a number"):
        parameters.real({"low": text}, "low")


def test_a_choice_is_one_of_its_values():
    assert parameters.choice({"of": "families"}, "of", Curves.AGENTS) is Curves.FAMILIES
    with pytest.raises(InvalidArgument, match="agents, champion, families"):
        parameters.choice({"of": "all"}, "of", Curves.AGENTS)


def test_words_are_short():
    with pytest.raises(InvalidArgument, match="at most 200"):
        parameters.words({"words": "x" * 201}, "words")


@pytest.mark.parametrize("data", [b"[]", b"{", b"1", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_object_is_refused(data):
    with pytest.raises(InvalidArgument):
        parameters.body_of(data)


@pytest.mark.parametrize("value", [3, None, "x" * 11])
def test_a_text_of_a_body_is_bounded(value):
    with pytest.raises(InvalidArgument):
        parameters.text_in({"reason": value}, "reason", longest=10)


def test_limits_that_are_given_are_set():
    spec = pool_limits({"maximum_pods": 3})
    assert spec.pool.maximum_pods == 3
    assert not spec.pool.HasField("minimum_pods")


@pytest.mark.parametrize(
    "body",
    [{}, {"maximum_pods": 0}, {"maximum_pods": "3"}, {"maximum_pods": True}, {"minimum_pods": 3, "maximum_pods": 2}],
)
def test_wrong_limits_are_refused(body):
    with pytest.raises(InvalidArgument):
        pool_limits(body)


def test_a_specification_is_read_as_toml():
    assert specification_of({"specification": 'name = "x"\n[environment]\nid = "CartPole-v1"'}).environment.id
    for text in ("name = ", "nonsense = 1", "a" * 300_000):
        with pytest.raises(InvalidArgument, match="specification"):
            specification_of({"specification": text})
