"""The IPPO benchmark plays the actor of the other library as that library does, and tabulates the seeds together."""

import pytest
import torch

from benchmarks.agents.ippo_peer import IPPO, SB3, TASKS, Perceptron, Run, chosen, scores, table


def tensors_of(network: torch.nn.Sequential) -> dict[str, torch.Tensor]:
    layers = [one for one in network if isinstance(one, torch.nn.Linear)]
    weights = {f"weight{number}": layer.weight.detach() for number, layer in enumerate(layers)}
    return weights | {f"bias{number}": layer.bias.detach() for number, layer in enumerate(layers)}


@pytest.fixture
def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    return torch.nn.Sequential(linear(4, 8), tanh(), linear(8, 8), tanh(), linear(8, 5))


def test_scores_are_the_outputs_of_the_layers(network: torch.nn.Sequential):
    observation = torch.randn(16, 4)
    torch.testing.assert_close(scores(tensors_of(network), observation), network(observation).detach())


def test_observations_are_normalized_and_limited(network: torch.nn.Sequential):
    mean, deviation = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.5, 1.0, 2.0, 1e-3])
    observation = torch.randn(16, 4)
    found = scores(tensors_of(network) | {"mean": mean, "deviation": deviation}, observation)
    expected = network(((observation - mean) / deviation).clip(-10, 10)).detach()
    torch.testing.assert_close(found, expected)


def test_the_action_with_the_highest_score_is_taken(network: torch.nn.Sequential):
    observation = torch.randn(16, 4)
    assert Perceptron(tensors_of(network)).act(observation).equal(network(observation).argmax(1))


def test_both_libraries_train_with_the_same_values():
    names = {
        "horizon": "n_steps",
        "learning_rate": "learning_rate",
        "entropy_coefficient": "ent_coef",
        "epochs": "n_epochs",
        "minibatch_size": "batch_size",
    }
    assert {name: IPPO[name] for name in names} == {name: SB3[other] for name, other in names.items()}


@pytest.mark.parametrize("name", TASKS)
def test_both_versions_of_an_environment_have_the_same_spaces(name: str):
    own, other = TASKS[name].make_own(1), TASKS[name].make_mpe2(1)
    assert own.observation_space == other.observation_space
    assert own.action_space == other.action_space


def test_a_row_has_the_returns_of_all_seeds():
    runs = [Run("spread", "ippo", seed, -60.0 - seed, 1.25, 300_000, 10.0 * seed) for seed in (1, 2)]
    rows = table([*runs, Run("tag", "random", 1, 9.0, 1.0, 0, 0.0)]).splitlines()[2:]
    assert rows == [
        "| `spread` | ippo | -61.0 ± 1.2, -62.0 ± 1.2 | 300,000 | 15 |",
        "| `tag` | random | 9.0 ± 1.0 | 0 | 0 |",
    ]


def test_an_unknown_name_is_refused():
    with pytest.raises(SystemExit, match="--tasks pursuit: choose among spread, tag"):
        chosen("spread,pursuit", list(TASKS), "--tasks")
