import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.comparison import fresh, peer_runs, trial_log
from benchmarks.comparison.contenders import PEERS, peer_values
from benchmarks.comparison.fresh import Policy, Request
from benchmarks.comparison.tasks import TASKS, UNKNOWN
from benchmarks.comparison.trial_log import Entry, TrialLog
from simulators import make

DOCKING = TASKS["docking"]
with_sb3 = pytest.mark.skipif(not importlib.util.find_spec("stable_baselines3"), reason="needs the extra bench")


def entry(seconds: float, score: float, policy: str = "a", trial: str = "t", steps: int = 10) -> Entry:
    return Entry(seconds, steps, score, 0.5, policy, 10, trial)


class Constant:
    """Always takes the same action."""

    def __init__(self, action: float, count: int) -> None:
        self._action = torch.full((count, 1), action)

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return self._action

    def reset(self, done: torch.Tensor) -> None:
        pass


def test_every_policy_plays_the_same_episodes_from_their_first_to_their_last_step(monkeypatch: pytest.MonkeyPatch):
    def returns(action: float) -> np.ndarray:
        monkeypatch.setattr(fresh, "make_actor", lambda policy, simulator, seed: Constant(action, simulator.count))
        return np.array(fresh.play(Request(DOCKING.id, {}, [], []), Policy("podrace"), 16).returns)

    assert (returns(0.0) == returns(0.0)).all()
    # The reference: 100 steps of each lane from the same first states.
    simulator, expected = make(DOCKING.id, 16), torch.zeros(16, dtype=torch.float64)
    simulator.reset(fresh.SEED)
    for _ in range(100):
        expected += simulator.step(torch.full((16, 1), 0.5)).reward
    assert returns(0.5) == pytest.approx(expected.numpy())


def test_runs_of_each_seed_have_fresh_episodes_of_their_own():
    seeds = {fresh.seed_of(seed) for seed in range(1, 11)}
    assert len(seeds) == 10
    assert fresh.seed_of(3) == fresh.seed_of(3)
    # Lanes may be seeded by consecutive numbers.
    assert min(abs(one - other) for one in seeds for other in seeds if one != other) > 1_000_000


def test_equal_policies_are_evaluated_once(monkeypatch: pytest.MonkeyPatch):
    played = []

    def play(request: Request, policy: Policy, episodes: int) -> fresh.Score:
        played.append(policy.place)
        return fresh.Score(1.0, 0.1, episodes)

    monkeypatch.setattr(fresh, "play", play)
    policies = [Policy("sb3", place) for place in ("a", "b", "a")]
    assert len(fresh.answer(Request("x", {}, policies, [8, 8, 8]))) == 3
    assert played == ["a", "b"]


def test_random_actions_are_within_the_action_space():
    for id in ("pendulum", "acrobot"):
        simulator = make(id, 64)
        actions = fresh.RandomActor(simulator, seed=1).act(torch.zeros(64, 3))
        simulator.step(actions)
        space = simulator.action_space
        low, high = (0, space.n - 1) if space.kind == "discrete" else (space.low[0], space.high[0])
        assert low <= float(actions.min()) < float(actions.max()) <= high


# --- logs of trials ----------------------------------------------------------------------------------------------


def test_a_study_is_what_all_its_processes_logged_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for process, entries in {1: [entry(1.0, 5.0), entry(9.0, 99.0)], 2: [entry(2.0, 7.0, "b", "u")]}.items():
        monkeypatch.setattr(trial_log.os, "getpid", lambda process=process: process)
        log = TrialLog(tmp_path)
        for one in entries:
            log.add(one)
    study = trial_log.read(tmp_path, seconds=5.0)
    assert [one.seconds for one in study.entries] == [1.0, 2.0]
    assert (study.steps, study.trials) == (20, 2)
    assert study.best is not None
    assert study.best.policy == "b"


def test_only_a_better_policy_of_a_process_is_saved(tmp_path: Path):
    log, saved = TrialLog(tmp_path), []
    for score in (1.0, 0.5, 1.0, 2.0):
        if path := log.new_policy(score):
            path.touch()
            saved.append(path.name)
    assert len(saved) == len(set(saved)) == 2


def test_the_outcome_of_a_study_is_its_best_policy_and_its_curve_has_the_best_so_far(tmp_path: Path):
    log = TrialLog(tmp_path)
    for one in (entry(10.0, 5.0, "a"), entry(20.0, 4.0, ""), entry(30.0, 8.0, "c"), entry(39.0, 6.0, "")):
        log.add(one)
    outcome = peer_runs.outcome_of(tmp_path, 40.0, 4, 41.5, "")
    assert outcome.policy == Policy("sb3", "c")
    assert (outcome.reported_score, outcome.environment_steps, outcome.wall_seconds) == (8.0, 40, 41.5)
    assert outcome.share_behind == 0.25
    assert [(moment.seconds, moment.policy.place) for moment in outcome.moments] == [
        (10.0, "a"), (20.0, "a"), (30.0, "c"),
    ]  # fmt: skip


def test_a_study_without_a_score_has_a_reason(tmp_path: Path):
    assert peer_runs.outcome_of(tmp_path, 40.0, 4, 41.5, "").reason == "no trial was scored in time"
    assert peer_runs.outcome_of(tmp_path, 40.0, 4, 41.5, "it crashed").reason == "it crashed"


# --- Stable-Baselines3 -------------------------------------------------------------------------------------------


@with_sb3
def test_a_vector_environment_steps_as_its_simulator_does():
    from benchmarks.comparison.vector import SimulatorVecEnv

    for id, actions in (("pendulum", np.full((4, 1), 0.5, np.float32)), ("acrobot", np.array([0, 1, 2, 1]))):
        environment, simulator = SimulatorVecEnv(id, {}, 4, seed=5), make(id, 4)
        assert (environment.reset() == simulator.reset(5).numpy()).all()
        for _ in range(3):
            observation, reward, done, _ = environment.step(actions)
            step = simulator.step(torch.as_tensor(actions))
            assert (observation == step.observation.numpy()).all()
            assert (reward == step.reward.numpy()).all()
            assert (done == (step.terminated | step.truncated).numpy()).all()


@with_sb3
def test_a_vector_environment_reports_how_an_episode_ended():
    from benchmarks.comparison.vector import SimulatorVecEnv

    environment = SimulatorVecEnv(DOCKING.id, {}, 2, seed=5)
    environment.reset()
    for _ in range(99):
        assert not environment.step(np.zeros((2, 1), np.float32))[2].any()
    *_, done, information = environment.step(np.zeros((2, 1), np.float32))
    assert done.all()
    assert information[0]["TimeLimit.truncated"]
    assert information[0]["terminal_observation"].shape == (3,)


@pytest.mark.long
@with_sb3
def test_a_trial_publishes_its_policy_and_another_continues_from_its_state(tmp_path: Path):
    from benchmarks.comparison.sb3_trial import StudyRequest, Trial

    values = peer_values(PEERS["ray-pbt"], "ray-pbt", DOCKING, UNKNOWN, 1, 60.0)
    request = StudyRequest(**{**values, "every_steps": 2048}, folder=str(tmp_path))
    trial = Trial(request, {"epochs": 1, "minibatch_size": 1024}, "first", 0.0, TrialLog(tmp_path))
    score = trial.advance()
    assert trial.steps == 2048
    study = trial_log.read(tmp_path, seconds=1e12)
    assert study.best is not None
    assert study.best.score == pytest.approx(score)
    # The saved policy acts as the trial's does.
    found = fresh.play(Request(DOCKING.id, {}, [], [], seed=10_000_019), Policy("sb3", study.best.policy), 32)
    assert found.mean == pytest.approx(score, rel=1e-5)
    heir = Trial(request, {"epochs": 2, "learning_rate": 1e-5}, "second", 0.0, TrialLog(tmp_path))
    heir.load_state(trial.state())
    assert heir.steps == 2048
    assert heir.model.learning_rate == 1e-5
    for own, other in zip(heir.model.policy.parameters(), trial.model.policy.parameters(), strict=True):
        assert torch.equal(own, other)
    trial.close()
    heir.close()
