from pathlib import Path

import click
import pytest

from podrace.cli.terminal.options import EPISODE_RANGE, SEED_RANGE, FiniteRange, Settings, parse_options
from podrace.errors import InvalidArgument
from podrace.field_bounds import violations
from podrace.orchestrator.v1.orchestrator_pb2 import CreateEvaluationRequest


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "0.5"])
def test_a_number_that_is_not_finite_or_not_in_the_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        FiniteRange(min=1.0).convert(text, None, None)
    assert FiniteRange(min=1.0).convert("2.5", None, None) == 2.5


def test_episodes_and_seeds_are_those_that_the_contract_accepts() -> None:
    largest, seed = EPISODE_RANGE.max, SEED_RANGE.max
    assert largest is not None
    assert seed is not None
    assert "episodes" not in {one.field for one in violations(CreateEvaluationRequest(episodes=int(largest)))}
    assert "episodes" in {one.field for one in violations(CreateEvaluationRequest(episodes=int(largest) + 1))}
    assert CreateEvaluationRequest(seed=int(seed)).seed == seed
    with pytest.raises(ValueError, match="range"):
        CreateEvaluationRequest(seed=int(seed) + 1)


def test_an_option_that_no_message_holds_is_refused() -> None:
    assert parse_options(["length=3", "split=backtest"])["length"] == 3
    with pytest.raises(InvalidArgument, match="options are numbers"):
        parse_options([f"length={'9' * 400}"])


def test_arguments_that_are_shown_can_be_pasted_into_a_shell() -> None:
    settings = Settings(Path("my home"), "", debug=False, as_json=False)
    assert settings.arguments == " --home 'my home'"
    assert Settings(Path("h"), "h:1", debug=False, as_json=False).arguments == " --orchestrator h:1"
