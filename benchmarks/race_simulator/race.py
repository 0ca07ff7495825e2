"""Runs one simulated race: pods train agents quantum by quantum until the clock ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.race_simulator.contenders import (
    PODS_EXPONENT,
    QUANTA,
    QUANTUM_SECONDS,
    QUANTUM_STEPS,
    SEARCHED,
    Contender,
)
from benchmarks.race_simulator.families import Family
from benchmarks.race_simulator.growth import Growth, GrowthRules
from benchmarks.race_simulator.learning import Learner, Luck, Point, State, World
from benchmarks.race_simulator.records import Records
from leaderboard.evolution.space import Range, plain, spaces_of
from orchestrator.decisions.dispatch import AssignExisting, DispatchState, Holder, PausedIncumbent, WorkItem, choose
from orchestrator.decisions.pod_sizes.changes import SizedPod
from orchestrator.decisions.pod_sizes.first_pods import has_one_founder
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate
from podrace.leaderboard.v1.leaderboard_pb2 import Contender as ChampionContender
from podrace.seeding import purpose_seed
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

EPOCHS = 8
"""Evaluation epochs of a race; in each, all agents are scored on the same episodes."""
FRESH_EPOCHS = 1000
"""Epochs from here on have episodes that were not used for selection."""
CORRELATION = 0.8
EPISODES = 16
TARGETS = (0.25, 0.5, 0.75)
"""Returns whose time is reported."""


@dataclass(frozen=True)
class Result:
    """The outcome of one race. Returns are true ones, without evaluation noise, unless stated otherwise."""

    final: float
    """Return of the champion."""
    area: float
    """Mean over the clock of the return of the candidate that ranks first."""
    quarters: tuple[float, ...]
    """Return of the candidate that ranks first after each quarter of the clock; the last is that of the champion."""
    bias: float
    """Reported score of the champion minus its return."""
    share: float
    """Share of all environment steps that the champion was trained on."""
    agents: int
    reached: tuple[float, ...] = ()
    """Share of the clock until the candidate that ranks first has each of TARGETS; 1 if it never has."""
    changes: int = 0
    """Changes of the size of a pod."""


@dataclass
class _Pod:
    """A pod and the agent that it trains."""

    name: str
    cores: float = 1.0
    agent: Agent | None = None
    learner: Learner | None = None
    steps: int = 0
    length: int = 0
    seconds: float = 0.0
    interrupted_seconds: float = 0.0
    """Time that is lost in the next quantum."""


@dataclass(frozen=True)
class _Checkpoint:
    point: Point
    luck: Luck
    state: State


@dataclass
class Race:
    """One contender on one task with one seed.

    result = Race(contender, specification, family, pods=2, seed=1).run()
    """

    contender: Contender
    spec: TournamentSpec
    """Resolved, see contenders.specification_of."""
    family: Family
    pods: int
    seed: int
    correlation: float = CORRELATION
    common_episodes: bool = True
    """Whether all agents are scored on the same episodes in an evaluation epoch."""
    rules: GrowthRules = field(default_factory=lambda: GrowthRules(PODS_EXPONENT))
    """What growing is worth, for a contender that grows."""
    _checkpoints: dict[str, _Checkpoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        episodes = self.spec.evaluation.episodes
        self._world = World(
            self.family, self.seed, episodes=episodes, correlation=self.correlation if self.common_episodes else 0.0
        )
        spec = TournamentSpec()
        spec.CopyFrom(self.spec)
        spec.seed = purpose_seed(self.seed, "race", 0)
        hyperparameters = spec.algorithms["ppo"].hyperparameters
        spaces = spaces_of("ppo", spec.algorithms["ppo"])
        self._spaces: list[Range] = [space for name in SEARCHED if isinstance(space := spaces[name], Range)]
        for name, space, position in zip(SEARCHED, self._spaces, self._world.default, strict=True):
            hyperparameters[name].value.number_value = space.at(position)
            if not self.contender.search:
                for bound in ("low", "high", "scale"):
                    hyperparameters[name].ClearField(bound)
        self._records = Records(spec, common_episodes=self.common_episodes)
        self._speed = self.contender.speed(self.pods)
        clock_seconds = QUANTA * QUANTUM_SECONDS if self.contender.by_clock else 0.0
        self._growth = Growth(self.rules, self.pods, clock_seconds) if self.contender.grows else None
        self._paused: list[_Pod] = []
        self._pods_made = 0

    def run(self) -> Result:
        """Runs the race."""
        pods = self._first_pods()
        curve = []
        for now in range(QUANTA):
            if self._growth:
                # A grown pod asks for work first: the others leave the next agent of the incumbent to it.
                for pod in sorted(pods, key=lambda one: -one.cores):
                    self._assign(pod, now, pods)
            for pod in pods:
                if not self._growth:
                    self._assign(pod, now, pods)
                self._train(pod, now)
            if self._growth:
                pods = self._resized(self._growth, pods, now)
            curve.append(self._true_return(self._records.board[0]))
        champion, reported = self._champion()
        final = self._true_return(champion)
        steps = self._records.environment_steps
        return Result(
            final=final,
            area=float(np.mean(curve)),
            quarters=(*(curve[QUANTA * quarter // 4 - 1] for quarter in (1, 2, 3)), final),
            bias=reported - final,
            share=champion.environment_steps / steps,
            agents=len(self._records.agents),
            reached=tuple(share_until(curve, target) for target in TARGETS),
            changes=self._growth.changes if self._growth else 0,
        )

    def _first_pods(self) -> list[_Pod]:
        if not self._growth or self.contender.by_clock or not has_one_founder(self.spec):
            return [self._new_pod() for _ in range(self.contender.pods(self.pods))]
        pods = []
        for cores in self._growth.first_sizes():
            pods.append(self._new_pod())
            pods[-1].cores = cores
        return pods

    def _new_pod(self) -> _Pod:
        self._pods_made += 1
        return _Pod(f"pod-{self._pods_made - 1}")

    def _resized(self, growth: Growth, pods: list[_Pod], now: int) -> list[_Pod]:
        """Returns the pods after the change that is due, if any; free cores become pods of one core."""
        free = self.pods - sum(pod.cores for pod in pods)
        change = growth.decide(
            self._records.trials, [self._sized(pod) for pod in pods], free, (now + 1) * QUANTUM_SECONDS
        )
        if change:
            for pod in pods:
                if pod.name == change.pod_id:
                    pod.cores, pod.interrupted_seconds = change.cores, self.rules.gap_seconds
            retired = [pod for pod in pods if pod.name in change.retired]
            self._paused += [pod for pod in retired if pod.agent is not None]
            pods = [pod for pod in pods if pod.name not in change.retired]
        free = self.pods - sum(pod.cores for pod in pods)
        return [*pods, *(self._new_pod() for _ in range(int(free)))]

    def _resume(self, pod: _Pod, pods: Sequence[_Pod]) -> None:
        """Continues an agent that no pod trains, if that comes before a new one."""
        leading = self._records.leading_trial
        # Stable: the agents of the incumbent first, then in the order in which they were paused.
        agents = [one.agent for one in self._paused if one.agent is not None]
        agents.sort(key=lambda agent: self._records.trial_number(agent) != (leading and leading.number))
        seat = next((one.name for one in pods if one.cores > 1 and one.agent is None), "")
        state = DispatchState(
            drain_reason="",
            end_reason="",
            evaluations=(),
            agents=[WorkItem(agent.agent_id, None) for agent in agents],
            next_number=len(self._records.agents),
            rounds=None,
            paused_incumbent=PausedIncumbent(seat) if self._growth and leading and not leading.training else None,
        )
        choice = choose(Holder(pod.name, ""), state)
        if isinstance(choice, AssignExisting):
            paused = next(one for one in self._paused if one.agent and one.agent.agent_id == choice.work_id)
            self._paused.remove(paused)
            pod.agent, pod.learner = paused.agent, paused.learner
            pod.steps, pod.length, pod.seconds = paused.steps, paused.length, paused.seconds

    def _assign(self, pod: _Pod, now: int, pods: Sequence[_Pod]) -> None:
        """Gives a pod without an agent the next one, if any."""
        if pod.agent is None and self._paused:
            self._resume(pod, pods)
        if pod.agent is None:
            pod.agent = self._records.generate(pod.name, now * QUANTUM_SECONDS)
            if pod.agent is not None:
                pod.learner = self._begun(pod.agent)
                pod.steps, pod.length, pod.seconds = 0, self._length_of(pod.agent), 0.0

    def _train(self, pod: _Pod, now: int) -> None:
        """Trains the pod's agent for a quantum and scores it."""
        if pod.agent is None or pod.learner is None:
            return
        lost, pod.interrupted_seconds = pod.interrupted_seconds / QUANTUM_SECONDS, 0.0
        speed = self._speed * self.rules.speed(pod.cores) * (1.0 - lost)
        self._world.train(pod.learner, speed)
        pod.steps += round(QUANTUM_STEPS * speed)
        pod.seconds += QUANTUM_SECONDS * pod.cores
        epoch, seconds = EPOCHS * now // QUANTA, pod.seconds
        true_return, end = pod.learner.state.true_return, (now + 1) * QUANTUM_SECONDS
        returns = self._world.returns(true_return, epoch)
        others = {
            other: self._world.returns(true_return, other) for other in self._records.other_epochs(pod.agent, epoch)
        }
        candidate = self._records.submit(
            pod.agent, returns, steps=pod.steps, seconds=seconds, epoch=epoch, now=end, others=others
        )
        learner = pod.learner
        self._checkpoints[candidate.candidate_id] = _Checkpoint(learner.point, learner.luck, learner.state)
        if pod.steps >= pod.length or pod.agent.agent_id in self._records.stops:
            self._records.finish(pod.agent)
            pod.agent = pod.learner = None

    def _length_of(self, agent: Agent) -> int:
        return agent.assignment_environment_steps or self.spec.assignment.environment_steps

    def _begun(self, agent: Agent) -> Learner:
        values = agent.hyperparameters.fields
        point = tuple(
            space.position(float(plain(values[name])))  # type: ignore[arg-type]
            for name, space in zip(SEARCHED, self._spaces, strict=True)
        )
        if not agent.HasField("starting_checkpoint"):
            return self._world.fresh(agent.number, point)
        parent = self._checkpoints[agent.starting_checkpoint.manifest_digest]
        begin = self._world.continued if self._records.continues(agent) else self._world.child
        return begin(agent.number, point, parent.luck, parent.state)

    def _champion(self) -> tuple[Candidate, float]:
        """Selects the champion; returns it with its reported score."""
        fresh: list[tuple[ChampionContender, NDArray[np.float64]]] = []
        epoch = FRESH_EPOCHS
        while (answer := self._records.champion(fresh)).contenders:
            fresh += [
                (one, self._world.returns(self._true_return(one.candidate), epoch, one.episodes))
                for one in answer.contenders
            ]
            epoch += 1
        return answer.champion, answer.score

    def _sized(self, pod: _Pod) -> SizedPod:
        scored = pod.learner is not None and pod.steps > 0
        score = pod.learner.state.true_return if pod.learner is not None and scored else None
        if pod.agent is None:
            return SizedPod(pod.name, pod.cores, "", score)
        return SizedPod(pod.name, pod.cores, pod.agent.agent_id, score, trial=self._records.trial_number(pod.agent))

    def _true_return(self, candidate: Candidate) -> float:
        return self._checkpoints[candidate.candidate_id].state.true_return


def share_until(curve: Sequence[float], target: float) -> float:
    """Returns the share of the clock after which a curve reaches a target; 1 if it never does."""
    return next((index + 1 for index, value in enumerate(curve) if value >= target), len(curve)) / len(curve)
