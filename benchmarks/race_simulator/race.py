"""Runs one simulated race: pods train agents quantum by quantum until the clock ends."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.race_simulator.contenders import (
    QUANTA,
    QUANTUM_SECONDS,
    QUANTUM_STEPS,
    SEARCHED,
    Contender,
)
from benchmarks.race_simulator.families import Family
from benchmarks.race_simulator.learning import Learner, Luck, Point, State, World
from benchmarks.race_simulator.records import Records
from leaderboard.evolution.space import Range, plain, spaces_of
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
    """Share of all environment steps that are behind the champion."""
    agents: int


@dataclass
class _Pod:
    """A pod and the agent that it trains."""

    name: str
    agent: Agent | None = None
    learner: Learner | None = None
    steps: int = 0
    length: int = 0


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

    def run(self) -> Result:
        """Runs the race."""
        pods = [_Pod(f"pod-{index}") for index in range(self.contender.pods(self.pods))]
        curve = []
        for now in range(QUANTA):
            for pod in pods:
                self._train(pod, now)
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
        )

    def _train(self, pod: _Pod, now: int) -> None:
        """Trains the pod's agent for a quantum and scores it; a pod without an agent gets the next one, if any."""
        if pod.agent is None or pod.learner is None:
            pod.agent = self._records.generate(pod.name, now * QUANTUM_SECONDS)
            if pod.agent is None:
                return
            pod.learner = self._begun(pod.agent)
            pod.steps, pod.length = 0, self._length_of(pod.agent)
        self._world.train(pod.learner, self._speed)
        pod.steps += round(QUANTUM_STEPS * self._speed)
        epoch, seconds = EPOCHS * now // QUANTA, QUANTUM_SECONDS * pod.steps / (QUANTUM_STEPS * self._speed)
        returns = self._world.returns(pod.learner.state.true_return, epoch)
        candidate = self._records.submit(pod.agent, returns, steps=pod.steps, seconds=seconds, epoch=epoch)
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

    def _true_return(self, candidate: Candidate) -> float:
        return self._checkpoints[candidate.candidate_id].state.true_return
