"""`podrace import` in its own child process."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
SB3 = Path(__file__).parents[4] / "fixtures/sb3"


@pytest.mark.parametrize("episodes", ["0", "1"])
def test_an_import_has_the_published_shape_with_and_without_a_score(type_: Any, episodes: str) -> None:
    model = str(SB3 / "ppo-cartpole.zip")
    answer = type_("import", model, "--environment", "CartPole-v1", "--episodes", episodes, "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["score"] is None) == (episodes == "0")
    assert Path(answer.json["folder"], "policy.onnx").is_file()
