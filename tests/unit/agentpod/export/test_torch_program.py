"""Programs of torch.export and ONNX files act as the torch policy does; one that acts differently is refused."""

import pytest
import torch
from policies import published

from agentpod.export import comparison
from agentpod.export.torch_program import EnsembleProgram, PolicyProgram, traced
from podrace.errors import DataLoss
from podrace.policy.loading import onnx_file
from podrace.policy.runtime import Policy
from simulators import make


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        "gaussian",
        "squashed",
        "deterministic",
        "recurrent",
        "pixels-last",
        "pixels-first",
        "dict",
        "dict-pair",
        "dict-bytes",
        "grid",
        "flags",
    ],
)
def test_the_module_acts_as_the_policy(case: str) -> None:
    policy = published(case).policy
    with torch.no_grad():
        assert comparison.compare_random([policy], PolicyProgram(policy)).checked(case).actions > 0


@pytest.mark.long
def test_an_ensemble_of_recurrent_policies_is_traced_for_any_number_of_rows() -> None:
    policies = [published("recurrent", seed).policy for seed in range(3)]
    with torch.no_grad():
        program = traced(policies).module()
        assert comparison.compare_random(policies, program).checked("ensemble").worst == 0.0
        assert program(torch.zeros(7, 3), torch.zeros(7, 15))[1].shape == (7, 15)
        assert isinstance(EnsembleProgram(policies).members[0], PolicyProgram)


def test_onnx_is_compared_on_the_observations_of_a_simulator() -> None:
    made, simulator = published("gaussian"), make("Pendulum-v1", 4)
    made.policy.to_environment = lambda action: action.flatten(1)[:, :1].clamp(-2.0, 2.0)

    def exported(observation: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return made.policy.to_environment(made.policy.head.mode(made.policy.outputs(observation))), state

    with torch.no_grad():
        assert comparison.compare_recorded([made.policy], exported, simulator).worst == 0.0
    simulator.close()


def test_a_policy_that_acts_differently_is_refused() -> None:
    other = comparison.of_onnx(Policy(onnx_file([published("squashed", 4).checkpoint])))
    with torch.no_grad(), pytest.raises(DataLoss, match="acts differently from the torch policy"):
        comparison.compare_random([published("squashed", 5).policy], other).checked("onnx")
