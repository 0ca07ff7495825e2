from typing import Any

import pytest

from podrace.cli.grid.axes import Axis, grid_name, make_cells, parse_axes
from podrace.errors import InvalidArgument

VALUES = {
    "name": "race",
    "environment": {"id": "CartPole-v1"},
    "algorithms": {"ppo": {"ratio": 0.0, "hyperparameters": {"epochs": 3}}, "dqn": {}},
    "evolution": {"strategy": "truncation", "population_size": 6, "initial_agents": 2},
    "objective": {"environment_steps": 1000},
}


def cells(*texts: str, values: dict[str, Any] = VALUES) -> list[Any]:
    return make_cells(values, parse_axes(texts), source="race.toml")


def test_an_axis_is_a_key_with_values_in_toml_syntax() -> None:
    assert parse_axes(["algorithm=ppo, sac", "seed=0..2,7", "pod.cores=1,2.5", "synchronous=true,false"]) == [
        Axis("algorithm", ("ppo", "sac"), ("ppo", "sac")),
        Axis("seed", (0, 1, 2, 7), ("0", "1", "2", "7")),
        Axis("pod.cores", (1, 2.5), ("1", "2.5")),
        Axis("synchronous", (True, False), ("true", "false")),
    ]


def test_commas_in_brackets_and_strings_do_not_separate_values() -> None:
    (axis,) = parse_axes(["algorithms.ppo.hyperparameters.hidden_sizes=[64,64],[128],'a,b'"])
    assert axis.values == ([64, 64], [128], "a,b")


def test_a_range_includes_both_ends_and_may_start_below_zero() -> None:
    assert parse_axes(["evaluation.options.shift=-1..1"])[0].values == (-1, 0, 1)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "name at least one axis"),
        (["seed"], "axis 'seed': expected KEY=VALUE"),
        (["=1,2"], "expected KEY=VALUE"),
        (["seed="], "axis seed: has an empty value"),
        (["seed=1,,2"], "axis seed: has an empty value"),
        (["seed=4..0"], "axis seed: range 4..0"),
        (["seed=0..1000"], "at most 1000 values"),
        (["seed=1,2,1"], "axis seed: has the value 1 twice"),
        (["seed=1", "seed=2"], "axis seed: is repeated"),
        (["strategy=pb2", "evolution.strategy=softmax"], "axis evolution.strategy: is repeated"),
        (["sead=1"], "unknown axis 'sead'; did you mean 'seed'?"),
        (["algoritm=ppo"], "unknown axis 'algoritm'; did you mean 'algorithm'?"),
        (["name=a,b"], "axis name"),
        (["seed=0..99", "pod.workers=1..11"], "1100 cells"),
    ],
)
def test_an_invalid_axis_is_refused_by_name(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_axes(texts)
    assert words in refusal.value.message
    assert "\n" not in refusal.value.message


def test_equal_values_of_different_types_are_different_values() -> None:
    assert parse_axes(["evaluation.options.x=1,true,1.0"])[0].values == (1, True, 1.0)


def test_cells_are_the_product_of_the_axes_and_the_last_axis_varies_fastest() -> None:
    assert [cell.title for cell in cells("strategy=pb2,softmax", "seed=0..1")] == [
        "strategy=pb2 seed=0", "strategy=pb2 seed=1", "strategy=softmax seed=0", "strategy=softmax seed=1",
    ]  # fmt: skip


def test_a_cell_is_the_resolved_specification_with_its_values() -> None:
    *_, cell = cells("algorithm=dqn,ppo", "environment=CartPole-v1,Acrobot-v1", "pool.maximum_pods=1,3", "seed=5")
    assert cell.values == {"algorithm": "ppo", "environment": "Acrobot-v1", "pool.maximum_pods": 3, "seed": 5}
    assert cell.spec.environment.id == "Acrobot-v1"
    assert cell.spec.pool.maximum_pods == 3
    assert cell.spec.seed == 5
    assert cell.spec.evaluation.episodes == 64


def test_the_algorithm_of_a_cell_is_the_only_one_and_keeps_its_hyperparameters() -> None:
    ppo, dqn = cells("algorithm=ppo,dqn")
    assert list(ppo.spec.algorithms) == ["ppo"]
    assert ppo.spec.algorithms["ppo"].hyperparameters["epochs"].value.number_value == 3
    assert ppo.spec.algorithms["ppo"].ratio == 1.0
    assert list(dqn.spec.algorithms) == ["dqn"]


def test_an_algorithm_that_the_specification_does_not_name_has_its_defaults() -> None:
    (cell,) = cells("algorithm=a2c")
    assert list(cell.spec.algorithms) == ["a2c"]


def test_settings_of_other_strategies_are_removed_and_common_ones_are_kept() -> None:
    truncation, softmax = cells("strategy=truncation,softmax")
    assert truncation.spec.evolution.population_size == 6
    assert not softmax.spec.evolution.HasField("population_size")
    assert softmax.spec.evolution.initial_agents == truncation.spec.evolution.initial_agents == 2


def test_the_given_specification_is_not_changed() -> None:
    before = repr(VALUES)
    cells("algorithm=ppo,a2c", "strategy=softmax", "environment.options.a=1")
    assert repr(VALUES) == before


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["evolution.mutation=1"], "cell evolution.mutation=1: evolution.mutation: unknown key"),
        (["evolution.mutation_facto=1"], "did you mean 'mutation_factor'?"),
        (["algorithm=ppo,zac"], "cell algorithm=zac: algorithms.zac: unknown algorithm 'zac'; did you mean 'sac'?"),
        (["seed=0", "pod.cores=1,0"], "cell seed=0 pod.cores=0: pod.cores = 0"),
        (["seed=x"], "cell seed=x: seed = 'x'"),
        (["seed.a=1"], "cell seed.a=1: seed"),
        (["strategy=softmax", "evolution.population_size=4"], "evolution.population_size = 4"),
        (["algorithm=ppo,dqn", "algorithms.ppo.hyperparameters.epochs=1"], "cell algorithm=dqn algorithms.ppo."),
        (["pod.cores=1,1.0"], "are the same tournament"),
    ],
)
def test_an_invalid_cell_is_reported_with_its_key(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        cells(*texts)
    assert words in refusal.value.message
    assert refusal.value.message.startswith("race.toml: cell")
    assert "\n" not in refusal.value.message


def test_a_cell_has_the_same_unique_name_in_every_grid() -> None:
    small, large = cells("seed=0..1"), cells("algorithm=ppo", "seed=0..2")
    again = cells("seed=0..3")
    assert [cell.spec.name for cell in small] == [cell.spec.name for cell in again[:2]]
    names = {cell.spec.name for cell in [*again, *large]}
    assert len(names) == 4 + 3
    assert all(name.startswith("race-") for name in names)


def test_changes_to_the_specification_change_the_names_of_cells() -> None:
    (cell,) = cells("seed=1")
    for changed in (VALUES | {"name": "again"}, VALUES | {"assignment": {"environment_steps": 7}}):
        assert cells("seed=1", values=changed)[0].spec.name != cell.spec.name


def test_the_name_of_a_cell_is_short_enough_for_a_tournament() -> None:
    (cell,) = cells("seed=1", values=VALUES | {"name": "x" * 63})
    assert len(cell.spec.name) == 51


def test_the_name_of_a_grid_depends_on_its_specification_axes_and_cells() -> None:
    def name(*texts: str) -> str:
        return grid_name(cells(*texts), parse_axes(texts))

    assert name("seed=0..1").startswith("race-grid-")
    assert name("seed=0..1") == name("seed=0,1")
    assert len({name("seed=0..1"), name("seed=0..2"), name("strategy=truncation", "seed=0..1")}) == 3


def test_cells_that_differ_only_in_the_seed_share_their_combination() -> None:
    found = cells("seed=0..1", "strategy=pb2,softmax")
    assert [cell.combination for cell in found] == [("pb2",), ("softmax",), ("pb2",), ("softmax",)]
