"""Resolving fills in every default, and an error names the key and the expected value."""

import math

import pytest
from google.protobuf.duration_pb2 import Duration

from podrace.config import assign
from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.specification import catalog
from podrace.specification import resolve as spec
from podrace.specification.hyperparameters import check_action_kind
from podrace.specification.messages import parse_duration
from podrace.tournament.v1 import tournament_pb2 as pb


def values(**overrides) -> dict:
    tree = {
        "environment": {"id": "CartPole-v1"},
        "algorithms": {"ppo": {}},
        "objective": {"target_return": 475},
    }
    for key, value in overrides.items():
        assign(tree, key.replace("__", "."), value)
    return tree


def resolve(**overrides) -> pb.TournamentSpec:
    return spec.resolve(spec.parse(values(**overrides), source="test.toml"))


def refusal(**overrides) -> str:
    with pytest.raises(InvalidArgument) as caught:
        resolve(**overrides)
    assert caught.value.reason == "ERROR_REASON_BAD_SPEC"
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_resolved_specification_sets_every_optional_field():
    resolved = resolve()
    assert resolved.name == "cartpole-v1"
    for section, defaults in spec.DEFAULTS.items():
        for name in defaults:
            assert getattr(resolved, section).HasField(name), f"{section}.{name}"
    assert resolved.HasField("seed")
    assert resolved.HasField("synchronous")
    assert resolved.pod.layout == pb.LAYOUT_FUSED
    hyperparameters = resolved.algorithms["ppo"].hyperparameters
    assert set(hyperparameters) == set(catalog.PPO.hyperparameters)
    assert all(entry.HasField("value") for entry in hyperparameters.values())


def test_resolving_twice_changes_nothing():
    resolved = resolve(algorithms__ppo={"hyperparameters": {"epochs": {"low": 2, "high": 9}}})
    assert spec.resolve(resolved) == resolved


def test_resolving_does_not_change_its_argument():
    given = spec.parse(values(), source="test")
    before = given.SerializeToString(deterministic=True)
    spec.resolve(given)
    assert given.SerializeToString(deterministic=True) == before


def test_the_default_layout_is_separate_from_two_cores_on():
    assert resolve(pod__cores=2).pod.layout == pb.LAYOUT_SEPARATE
    assert resolve(pod__cores=2, pod__layout="fused").pod.layout == pb.LAYOUT_FUSED


@pytest.mark.parametrize(
    ("environment", "pod", "layout"),
    [
        ("cartpole", {"gpus": 1, "cores": 8}, pb.LAYOUT_FUSED),
        ("cartpole", {"gpus": 1, "cores": 1}, pb.LAYOUT_FUSED),
        ("CartPole-v1", {"gpus": 1, "cores": 8}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"gpus": 3, "cores": 1}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"gpus": 8, "learners": 8, "cores": 64}, pb.LAYOUT_FUSED),
        ("cartpole", {"gpus": 16, "learners": 16, "hosts": 2, "cores": 64}, pb.LAYOUT_FUSED),
        ("cartpole", {"gpus": 8, "learners": 4, "cores": 64}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"gpus": 1, "cores": 8, "workers": 2}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"gpus": 1, "cores": 8, "plane": "cuda"}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"gpus": 1, "cores": 8, "layout": "separate"}, pb.LAYOUT_SEPARATE),
        ("cartpole", {"cores": 8}, pb.LAYOUT_SEPARATE),
    ],
)
def test_the_default_layout_is_fused_where_each_learner_steps_the_simulator_on_its_own_gpu(environment, pod, layout):
    assert resolve(environment__id=environment, pod=pod).pod.layout == layout


def test_a_hyperparameter_is_fixed_by_a_value_and_searched_by_a_range():
    given = {
        "learning_rate": 1e-3,
        "clip_range": {"low": 0.1, "high": 0.15},
        "hidden_sizes": {"choices": [[8], [16, 16]]},
    }
    resolved = resolve(algorithms__ppo={"hyperparameters": given}).algorithms["ppo"].hyperparameters
    assert resolved["learning_rate"].value.number_value == 1e-3
    assert not resolved["learning_rate"].HasField("low")
    # The default, 0.2, is moved into the range.
    assert resolved["clip_range"].value.number_value == 0.15
    assert resolved["clip_range"].scale == pb.SCALE_LINEAR
    assert list(resolved["hidden_sizes"].value.list_value) == [8]
    # A hyperparameter that is not mentioned is searched in the catalog's range.
    assert resolved["entropy_coefficient"].HasField("low")
    assert resolved["entropy_coefficient"].scale == pb.SCALE_LOG


def searched(name: str, **given) -> dict:
    return {"algorithms__ppo": {"hyperparameters": {name: given}}}


def hyperparameter(name: str, algorithm: str = "ppo", **given) -> pb.HyperparameterSpec:
    overrides = {f"algorithms__{algorithm}": {"hyperparameters": {name: given} if given else {}}}
    return resolve(**overrides).algorithms[algorithm].hyperparameters[name]


def test_discount_and_lambda_have_the_scale_of_their_distance_to_one():
    assert hyperparameter("discount", low=0.9, high=0.999).scale == pb.SCALE_REVERSE_LOG
    assert hyperparameter("gae_lambda").scale == pb.SCALE_REVERSE_LOG
    assert hyperparameter("gae_lambda", low=0.9, high=0.99, scale="linear").scale == pb.SCALE_LINEAR
    # A range that includes 1 has no place on that scale.
    assert hyperparameter("gae_lambda", low=0.9, high=1).scale == pb.SCALE_LINEAR


def test_zero_is_searched_with_a_logarithmic_range_and_one_with_a_reverse_one():
    declared = hyperparameter("entropy_coefficient")
    assert (declared.low, declared.zero_probability, declared.value.number_value) == (1e-5, 0.1, 0.001)
    assert hyperparameter("entropy_coefficient", zero_probability=0).zero_probability == 0
    assert not hyperparameter("entropy_coefficient", low=1e-4, high=0.1).zero_probability
    own = {"low": 1e-4, "high": 0.1, "zero_probability": 0.3, "value": 0}
    assert hyperparameter("entropy_coefficient", **own).value.number_value == 0
    # The default of A2C is 1, the extra value.
    assert hyperparameter("gae_lambda", algorithm="a2c").value.number_value == 1
    assert hyperparameter("gae_lambda", low=0.8, high=0.99, zero_probability=0.1, value=1).scale == pb.SCALE_REVERSE_LOG


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"envronment": {}}, "did you mean 'environment'"),
        ({"environment__idd": "x"}, "environment.idd: unknown key"),
        ({"environment__id": ""}, "environment.id: missing"),
        ({"environment__count": 0}, "environment.count = 0: expected 1 to"),
        ({"environment__count": 2.5}, "expected a whole number"),
        ({"environment": 3}, "expected a table"),
        ({"algorithms": {}}, "algorithms: empty"),
        ({"algorithms": {"pppo": {}}}, "unknown algorithm 'pppo'; did you mean 'ppo'"),
        ({"algorithms__ppo__ratio": -1}, "algorithms.ppo.ratio = -1"),
        ({"algorithms__ppo__ratio": 0}, "every ratio is 0"),
        ({"algorithms__ppo": {"hyperparameters": {"lr": 1}}}, "unknown hyperparameter 'lr'"),
        ({"algorithms__ppo": {"hyperparameters": {"epochs": 1.5}}}, "epochs = 1.5: expected a whole number"),
        ({"algorithms__ppo": {"hyperparameters": {"activation": "sine"}}}, "one of tanh, relu"),
        ({"algorithms__ppo": {"hyperparameters": {"discount": 1.5}}}, "discount = 1.5: expected a number from 0 to 1"),
        ({"algorithms__ppo": {"hyperparameters": {"discount": {"low": 0.9}}}}, "low and high belong together"),
        ({"algorithms__ppo": {"hyperparameters": {"discount": {"low": 0.9, "high": 0.8}}}}, "expected low < high"),
        ({"algorithms__ppo": {"hyperparameters": {"activation": {"low": 0, "high": 1}}}}, "has no range"),
        (searched("entropy_coefficient", low=0, high=0.1), "set low to the smallest other value, and zero_probability"),
        (searched("discount", low=0.9, high=1, scale="reverse_log"), "needs a range below 1; to search 1 as well, set"),
        (searched("epochs", low=1, high=9, scale="reverse_log"), "not for whole numbers"),
        (searched("clip_range", low=0.1, high=0.3, zero_probability=0.1), "is for the scales log and reverse_log"),
        (searched("learning_rate", low=1e-5, high=1, zero_probability=0.1), "the value 0 is not allowed here"),
        (searched("adam_epsilon", zero_probability=0.1), "zero_probability: belongs to a range"),
        (searched("gae_lambda", zero_probability=1), "zero_probability = 1: expected 0 to 0.99"),
        (searched("gae_lambda", low=0.9, high=0.99, value=1), "value 1 is outside its range 0.9 to 0.99"),
        ({"algorithms__ppo": {"hyperparameters": {"normalize_rewards": 1}}}, "expected true or false"),
        ({"algorithms__ppo": {"hyperparameters": {"hidden_sizes": [0]}}}, "a list of whole numbers"),
        ({"objective": {}}, "objective: empty"),
        ({"objective__target_return": float("nan")}, "finite"),
        ({"objective__wall_clock_duration": "4 parsecs"}, "expected a duration such as '90s'"),
        ({"objective__wall_clock_duration": -4}, "expected a duration"),
        ({"pool__maximum_pods": 1, "pool__minimum_pods": 2}, "less than pool.minimum_pods"),
        ({"pod__layout": "merged"}, "one of separate, fused"),
        ({"pod__workers": 2}, "pod.workers = 2: each learner of a fused pod has one worker"),
        ({"pod__cores": "two"}, "expected a number"),
        ({"seed": True}, "expected a whole number"),
        ({"synchronous": 1}, "expected true or false"),
        ({"synchronous": True}, "pool.maximum_pods: missing"),
        ({"synchronous": True, "pool__maximum_pods": 2, "pod": {"cores": 2, "learners": 2}}, "pod.learners = 2"),
        ({"pod": {"layout": "fused", "hosts": 2}}, "pod.learners = 1: is not divisible by pod.hosts = 2"),
        ({"pod": {"layout": "fused", "learners": 2, "gpus": 1}}, "pod.gpus = 1: NCCL connects GPUs"),
        ({"pod": {"cores": 2, "hosts": 2}}, "pod.learners = 1: is not divisible by pod.hosts = 2"),
        ({"pod": {"cores": 2, "hosts": 2, "learners": 4, "gpus": 3}}, "pod.gpus = 3: is not divisible by"),
        ({"pod__precision": "float16"}, "pod.precision"),
        ({"pod": {"layout": "separate", "plane": "pigeon"}}, "pod.plane: unknown plane 'pigeon'"),
        ({"pod": {"layout": "fused", "gpus": 2}}, "pod.gpus = 2: a fused pod computes on one GPU for each"),
        (
            {"pod": {"layout": "fused", "gpus": 8, "learners": 4}},
            "set pod.learners = 8, pod.gpus = 4, or layout = 'separate'",
        ),
        (
            {"pod": {"layout": "separate", "learners": 3, "gpus": 2}},
            "pod.gpus = 2: NCCL connects GPUs, so each of the 3 learners needs its own; set it to 3 or more, or to 0",
        ),
        ({"pod": {"layout": "fused", "plane": "shared"}}, "pod.plane = 'shared': a learner of a fused pod"),
        ({"pod": {"layout": "separate", "plane": "cuda"}}, "pod.plane = 'cuda': set pod.gpus"),
        ({"fusion__mode": "mean"}, "fusion.mode"),
        ({"fusion__every_updates": 0}, "fusion.every_updates = 0: expected 1 to"),
        ({"champion": {"ensemble": 5}}, "champion.ensemble = 5: members are chosen among the 4 candidates"),
        ({"champion": {"reevaluate_top": 0, "ensemble": 2}}, "champion.reevaluate_top; set that to at least as many"),
        ({"evolution__strategy": "tornament"}, "did you mean 'tournament'"),
        ({"evolution__fresh_probability": 2}, "expected 0 to 1"),
        ({"name": "no spaces"}, "expected letters, digits"),
        ({"name": "podrace-archive-x"}, "begin ids of other things"),
        ({"name": "n" * 64}, "expected at most 63 bytes"),
        (
            {"algorithms__ppo__hyperparameters": {"learning_rate": math.nan}},
            "learning_rate.value = nan: expected a fin",
        ),
        (
            {"algorithms__ppo__hyperparameters": {"learning_rate": math.inf}},
            "learning_rate.value = inf: expected a fin",
        ),
        ({"algorithms__ppo__hyperparameters": {"hidden_sizes": [8, math.inf]}}, "hidden_sizes.value = inf: expected"),
        ({"algorithms__ppo__hyperparameters": {"adam_epsilon": 0}}, "adam_epsilon = 0.0: expected a number from 1e-12"),
        (
            {"algorithms__ppo__hyperparameters": {"epochs": {"choices": [2, 4], "value": 3}}},
            "hyperparameters.epochs: value 3.0 is not among its choices",
        ),
        ({"algorithms__ppo__ratio": math.inf}, "algorithms.ppo.ratio = inf: expected a finite number"),
        ({"objective__wall_clock_duration": math.inf}, "objective.wall_clock_duration = inf: expected a duration"),
        ({"objective__wall_clock_duration": 1e300}, "objective.wall_clock_duration = 1e+300: expected a duration"),
        (
            {"objective__wall_clock_duration": 1e12},
            "= 1000000000000 s: expected a valid duration of more than 0 and at most 315576000000 s",
        ),
        (
            {"objective__wall_clock_duration": 0},
            "objective.wall_clock_duration = 0 s: expected a duration of more than 0",
        ),
        (
            {"assignment__duration": "0s"},
            "assignment.duration = 0 s: expected a duration of more than 0, such as '90s'",
        ),
        ({"environment__options__a": math.nan}, "environment.options.a = nan: expected a finite number"),
        ({"evaluation__options__a": {"b": [1, -math.inf]}}, "evaluation.options.a.b = -inf: expected a finite number"),
        ({"reports__last": {"options": {"a": math.inf}}}, "reports.last.options.a = inf: expected a finite number"),
        ({"pod": {"maximum_cores": 1.5}}, "pod.maximum_cores = 1.5: expected a multiple of pod.cores = 1"),
        ({"pod": {"cores": 2, "maximum_cores": 1}}, "pod.maximum_cores = 1: expected a multiple of pod.cores = 2"),
        ({"pod": {"minimum_cores": 3, "maximum_cores": 2}}, "pod.minimum_cores = 3: more than pod.maximum_cores = 2"),
        ({"pod": {"maximum_cores": 2}, "evolution__strategy": "asha"}, "only the strategy 'incumbent' has an agent"),
        (
            {"pod": {"maximum_cores": 2}, "synchronous": True, "pool__maximum_pods": 2},
            "when a pod grows depends on the speed of the machine",
        ),
        ({"pod": {"maximum_cores": 4, "cores": 2, "workers": 2}}, "a pod gets further workers when it grows"),
    ],
)
def test_an_error_names_the_key_and_what_is_expected(overrides, words):
    assert words in refusal(**overrides)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pb.TournamentSpec(pod=pb.PodSpec(layout=99)), "pod.layout = 99: expected one of separate, fused"),
        (
            pb.TournamentSpec(assignment=pb.AssignmentSpec(duration=Duration(seconds=-1))),
            "assignment.duration = -1 s: expected a valid duration",
        ),
        (
            pb.TournamentSpec(assignment=pb.AssignmentSpec(duration=Duration(seconds=1, nanos=-1))),
            "assignment.duration = 1 s and -1 ns: expected a valid duration",
        ),
        (
            pb.TournamentSpec(objective=pb.ObjectiveSpec(wall_clock_duration=Duration(seconds=1, nanos=1_000_000_000))),
            "objective.wall_clock_duration = 1 s and 1000000000 ns: expected a valid duration",
        ),
        (
            pb.TournamentSpec(objective=pb.ObjectiveSpec(wall_clock_duration=Duration(seconds=1 << 62))),
            "objective.wall_clock_duration = 4611686018427387904 s: expected a valid duration",
        ),
        (
            pb.TournamentSpec(objective=pb.ObjectiveSpec(wall_clock_duration=Duration())),
            "objective.wall_clock_duration = 0 s: expected a duration of more than 0",
        ),
    ],
)
def test_a_message_is_checked_like_a_file(given, words):
    message = spec.parse(values(), source="test")
    message.MergeFrom(given)
    with pytest.raises(InvalidArgument) as caught:
        spec.resolve(message)
    assert caught.value.message.startswith(words)


def test_a_message_with_a_number_that_is_not_finite_is_refused():
    given = spec.parse(values(environment__options={"a": {"b": [1]}}), source="test")
    given.environment.options["a"]["b"][0] = math.nan
    with pytest.raises(InvalidArgument, match=r"^environment\.options\.a\.b = nan: expected a finite number$"):
        spec.resolve(given)
    given = spec.parse(values(), source="test")
    given.algorithms["ppo"].hyperparameters["discount"].value.number_value = math.inf
    with pytest.raises(InvalidArgument, match=r"^algorithms\.ppo\.hyperparameters\.discount\.value = inf: expected"):
        spec.resolve(given)


def test_a_message_with_an_unknown_scale_is_refused():
    given = spec.parse(values(), source="test")
    given.algorithms["ppo"].hyperparameters["discount"].scale = 7
    with pytest.raises(InvalidArgument, match=r"hyperparameters\.discount\.scale = 7: expected one of linear, log"):
        spec.resolve(given)


def test_options_may_hold_any_finite_value():
    options = {"a": {"b": [1, "x", True, {"c": -0.5}]}, "d": 1e300}
    assert resolve(environment__options=options).environment.options == options


def test_a_value_that_is_one_of_its_choices_is_kept():
    given = {"hidden_sizes": {"choices": [[8], [16, 16]], "value": [16, 16]}}
    resolved = resolve(algorithms__ppo={"hyperparameters": given}).algorithms["ppo"].hyperparameters
    assert list(resolved["hidden_sizes"].value.list_value) == [16, 16]


def test_evaluations_race_unless_that_is_not_reproducible_or_a_plugin_scores():
    racing = {"racing": True}
    assert resolve().evaluation.racing
    assert not resolve(evaluation={"racing": False}).evaluation.racing
    assert not resolve(synchronous=True, pool__maximum_pods=2).evaluation.racing
    assert not resolve(evaluation={"evaluator": "python:a:b"}).evaluation.racing
    message = refusal(synchronous=True, pool__maximum_pods=2, evaluation=racing)
    assert message.startswith("evaluation.racing = true: which candidates the leaderboard knows")
    message = refusal(evaluation={"evaluator": "python:a:b", **racing})
    assert message.startswith("evaluation.racing = true: evaluator plugins play all episodes in one call")


def test_wall_clock_limits_are_refused_when_synchronous():
    message = refusal(synchronous=True, pool__maximum_pods=2, assignment__duration="30s")
    assert "assignment.duration" in message


def test_an_algorithm_that_does_not_support_the_action_space_is_refused():
    discrete = catalog.Algorithm("for the test", action_kinds=("discrete",))
    with pytest.raises(InvalidArgument, match="handles discrete actions, but those of environment 'stocks' are cont"):
        check_action_kind("dqn", discrete, pb.EnvironmentSpec(id="stocks"))
    check_action_kind("dqn", discrete, pb.EnvironmentSpec(id="CartPole-v1"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90.0), ("90s", 90.0), ("4m", 240.0), ("1h30m", 5400.0), ("250ms", 0.25), ("x", None), ("", None)],
)
def test_durations_are_numbers_of_seconds_or_text_with_units(text, seconds):
    assert parse_duration(text) == seconds


def test_the_shares_of_the_incumbent_are_filled_in_only_where_its_pod_may_grow():
    assert not resolve(pod={"cores": 1}).pod.HasField("improving_share")
    grows = resolve(pod={"cores": 1, "maximum_cores": 4}).pod
    assert (grows.minimum_cores, grows.improving_share, grows.stalled_share) == (1, 0.7, 0.1)


def all_problems(given: pb.TournamentSpec) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        spec.resolve(given)
    assert caught.value.reason == BAD_SPEC
    return caught.value


def test_all_values_out_of_bounds_are_reported_at_once():
    given = pb.TournamentSpec(name="n" * 64)
    given.pod.workers, given.pool.minimum_pods = 0, 20_000
    given.objective.target_return = math.nan
    given.evaluation.answer_duration.seconds = -1
    given.environment.options["x"] = math.inf
    assert {violation.field for violation in all_problems(given).violations} == {
        *("name", "pod.workers", "pool.minimum_pods", "objective.target_return", "environment.options.x"),
        "evaluation.answer_duration",
    }


def test_rules_that_involve_several_keys_and_algorithms_are_reported_at_once():
    given = pb.TournamentSpec(synchronous=True)
    given.environment.id = "CartPole-v1"
    given.pod.plane, given.pod.precision = "cuda", "float8"
    given.algorithms["ppo"].hyperparameters["learning_rate"].low = 0.1
    given.algorithms["ppo"].hyperparameters["gamma"].value.number_value = 7.0
    given.algorithms["pppo"].SetInParent()
    fields = [violation.field for violation in all_problems(given).violations]
    assert fields == [
        *("pod.precision", "pod.plane", "pod.plane", "objective", "pool.maximum_pods"),
        *("algorithms.ppo.hyperparameters.gamma", "algorithms.ppo.hyperparameters.learning_rate", "algorithms.pppo"),
    ]


def test_teams_need_an_algorithm_for_teams() -> None:
    alone, teams = catalog.ALGORITHMS["ppo"], catalog.ALGORITHMS["mappo"]
    for id in ("spread", "pettingzoo:mpe2.simple_tag_v3"):
        check_action_kind("mappo", teams, pb.EnvironmentSpec(id=id))
        with pytest.raises(InvalidArgument) as caught:
            check_action_kind("ppo", alone, pb.EnvironmentSpec(id=id))
        assert caught.value.message == (
            f"algorithms.ppo: trains one agent, but environment {id!r} has several agents: choose among "
            "ippo, mappo, vdn, qmix, maddpg, matd3"
        )
    with pytest.raises(InvalidArgument, match=r"algorithms\.mappo: trains teams, but .* 'cartpole' has one agent"):
        check_action_kind("mappo", teams, pb.EnvironmentSpec(id="cartpole"))
    # A module of the user may make either.
    check_action_kind("mappo", teams, pb.EnvironmentSpec(id="python:mine:make"))


def test_an_option_can_make_actions_continuous() -> None:
    algorithm, chosen = catalog.ALGORITHMS["matd3"], pb.EnvironmentSpec(id="spread")
    check_action_kind("maddpg", catalog.ALGORITHMS["maddpg"], chosen)
    with pytest.raises(InvalidArgument) as caught:
        check_action_kind("matd3", algorithm, chosen)
    assert caught.value.message == (
        "algorithms.matd3: handles continuous actions, but those of environment 'spread' are discrete; "
        "set environment.options.continuous_actions = true"
    )
    chosen.options["continuous_actions"] = True
    check_action_kind("matd3", algorithm, chosen)
    check_action_kind("maddpg", catalog.ALGORITHMS["maddpg"], chosen)
    with pytest.raises(InvalidArgument, match=r"qmix: handles discrete actions, but .* are continuous"):
        check_action_kind("qmix", catalog.ALGORITHMS["qmix"], chosen)
