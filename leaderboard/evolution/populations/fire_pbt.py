"""Implements the strategy `fire-pbt`: a part of the population is selected by how fast its networks can improve.

Dalibard and Jaderberg, "Faster Improvement Rate Population Based Training", arXiv 2109.13800, with the shares of a
public implementation (github.com/AwesomeLemon/PBT-Zoo). Selection by score prefers what improves fast at the moment,
such as a small learning rate, even if it ends lower. The method assumes: of two networks of the same performance that
train with the same hyperparameters, the one that improves faster ends higher.

Seats have one of three roles:
    greedy      evolve by their scores, as in `truncation`
    patient     evolve by the gains of their networks over each other, as evaluators measured them
    evaluators  measure the networks of patient seats. An evaluation starts from the newest checkpoint of the patient
                seat that has waited longest, and trains it with the hyperparameters of the best greedy seat, its
                *reference*. The scores of such trainings can be compared: they differ only by their networks.
A gain is that of leaderboard.evolution.populations.improvement_curves. An evaluation ends
    - when its reference or its patient seat has been replaced;
    - after `EVALUATION_TURNS` turns, unless its curve reaches that of its reference;
    - when it is not ahead of its reference: so many of its scores are higher by chance with a probability of more than
      LEVEL + max(0, 1 - turns / EVALUATION_TURNS);
    - when it is ahead: it has a gain, and that probability is below LEVEL. The reference then continues from the newest
      checkpoint of the evaluation, so greedy seats get the networks of patient ones.

Differences from the paper and the implementation:
- A turn of a seat is one agent, and agents do not wait for each other.
- A patient seat keeps the curve of its last evaluation until it is replaced: there are fewer evaluators than patient
  seats, and otherwise few could be compared. The worst quarter continues from the best quarter.
- Nothing takes over whose lead in score is within the standard error of the difference (greedy seats only), as in
  `truncation`.
- LEVEL is 0.05 instead of 0.01, because an agent has a few scores instead of hundreds; curves are aligned by means of
  three neighboring scores.
- An evaluator's first agent is fresh, because there is nothing to evaluate yet.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from leaderboard.evolution.comparison import leads, ranked, share_of
from leaderboard.evolution.history import History
from leaderboard.evolution.mutation import mutate
from leaderboard.evolution.populations import truncation
from leaderboard.evolution.populations.improvement_curves import gain, overlap_of, sign_test
from leaderboard.evolution.populations.population import Selection, newest_of, propose_for_seat, unstructural
from leaderboard.evolution.populations.seats import Seat, seats_of
from leaderboard.evolution.space import Value, movable_spaces, plain
from leaderboard.evolution.strategy import Situation
from leaderboard.ranking.board import named
from leaderboard.seeding import draw_one
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate

EVALUATOR_SHARE = 0.28
"""Of all seats. The others are divided between greedy and patient ones."""
EVALUATION_TURNS = 3
LEVEL = 0.05
"""Of the test whether an evaluation is ahead of its reference."""
GREEDY, PATIENT, EVALUATOR = "greedy", "patient", "evaluator"


def role_of(seat: int, population_size: int) -> str:
    """Returns the role of a seat. Seats that were added have those of the first ones again."""
    evaluators = round(EVALUATOR_SHARE * population_size)
    patient = (population_size - evaluators) // 2
    if not patient:
        return GREEDY
    place = seat % population_size
    if place < population_size - evaluators - patient:
        return GREEDY
    return PATIENT if place < population_size - evaluators else EVALUATOR


@dataclass(frozen=True)
class Evaluation:
    """Successive agents of an evaluator that trained one network of a patient seat."""

    agents: tuple[Agent, ...]
    patient: Agent
    """The agent whose checkpoint it started from."""


def select(own: Candidate, others: Sequence[Seat], situation: Situation, random: Random) -> Selection:
    """Decides by the role of the seat."""
    number = situation.agent_of(own).seat
    population = _Population([*others, _seat(number, situation.history)], situation)
    role = population.role(number)
    if role == EVALUATOR:
        return population.measure(own, number)
    if role == PATIENT:
        return population.select_patient(own, number, random)
    ahead = population.evaluation_ahead(own, number)
    if ahead is not None:
        reason = f"{named(own)} is overtaken by an evaluation with its hyperparameters, replaced by {named(ahead)}"
        return Selection(ahead, explores=False, reason=reason, values_of=own)
    greedy = [seat for seat in others if population.role(seat.number) == GREEDY]
    return truncation.select(own, greedy, situation, random)


def explore(
    situation: Situation, parent: Candidate, own_values: Mapping[str, Value], random: Random
) -> dict[str, Value]:
    """Multiplies or divides the parent's hyperparameters by `mutation_factor`."""
    spaces = movable_spaces(parent.algorithm, situation.spec.algorithms[parent.algorithm])
    return mutate(situation.values_of(parent), spaces, situation.spec.evolution, random)


class _Population:
    """The seats of one algorithm, and what their evaluators measured."""

    def __init__(self, seats: Sequence[Seat], situation: Situation) -> None:
        self._seats = {seat.number: seat for seat in sorted(seats, key=lambda seat: seat.number)}
        self._situation = situation
        self._history = situation.history
        self._scores: defaultdict[str, list[float]] = defaultdict(list)
        for one in situation.history.submissions:
            self._scores[one.agent_id].append(one.score)
        self._greedy_values = {seat.number: self._values(seat.agents[-1]) for seat in self._with_role(GREEDY)}
        found = (self._evaluations_of(seat) for seat in self._seats.values() if self.role(seat.number) == EVALUATOR)
        self._evaluations = [one for several in found for one in several]

    def role(self, seat: int) -> str:
        return role_of(seat, self._situation.spec.evolution.population_size)

    def measure(self, own: Candidate, number: int) -> Selection:
        """Continues the evaluation of a seat, or begins the next one."""
        last = next((one for one in reversed(self._evaluations) if one.agents[-1].agent_id == own.agent_id), None)
        if last is not None and self._continues(last):
            reason = f"evaluates the network of seat {last.patient.seat}, turn {len(last.agents) + 1}"
            return Selection(own, explores=False, reason=reason)
        references = ranked(newest_of(self._with_role(GREEDY)))
        waiting = self._longest_waiting(number)
        if not references or waiting is None or waiting.newest is None:
            return Selection(own, explores=False, reason="there is nothing to evaluate; continues")
        reference = references[0]
        reason = f"evaluates {named(waiting.newest)} of seat {waiting.number} with the values of {named(reference)}"
        return Selection(waiting.newest, explores=False, reason=reason, values_of=reference)

    def select_patient(self, own: Candidate, number: int, random: Random) -> Selection:
        """Replaces one of the slowest by one of the fastest."""
        curves = self._measured_curves()
        if number not in curves or len(curves) == 1:
            return Selection(own, explores=False, reason=f"no evaluation compares {named(own)} with others; continues")
        gains = {
            seat: sum(gain(curve, other) for rival, other in curves.items() if rival != seat)
            for seat, curve in curves.items()
        }
        fastest = sorted(gains, key=lambda seat: (-gains[seat], seat))
        standing = f"{named(own)} is {fastest.index(number) + 1} of {len(fastest)} by improvement"
        evolution = self._situation.spec.evolution
        slow = fastest[len(fastest) - share_of(len(fastest), evolution.replaced_share) :]
        donors = fastest[: share_of(len(fastest), evolution.donor_share)] if number in slow else []
        ahead = newest_of([self._seats[seat] for seat in donors if gains[seat] > gains[number]])
        if not ahead:
            return Selection(own, explores=False, reason=f"{standing}, continues")
        donor = draw_one(random, ahead)
        return Selection(donor, explores=True, reason=f"{standing}, replaced by {named(donor)}")

    def evaluation_ahead(self, own: Candidate, number: int) -> Candidate | None:
        """Returns the newest candidate of the evaluation that is furthest ahead of a greedy seat; None if none is."""
        chain = self._chain(number)
        curve, known = self._curve(chain), {agent.agent_id for agent in chain}
        found: list[tuple[float, Candidate]] = []
        for one in self._evaluations:
            newest = self._newest(one)
            if newest is None or self._reference(one) != number or one.agents[-1].agent_id in known:
                continue
            measured = self._curve(one.agents)
            lead = gain(measured, curve)
            if lead > 0 and sign_test(measured, curve) < LEVEL and leads(newest, own):
                found.append((lead, newest))
        return max(found, key=lambda pair: (pair[0], -pair[1].agent_number))[1] if found else None

    def _continues(self, evaluation: Evaluation) -> bool:
        reference = self._reference(evaluation)
        if reference is None or self._is_replaced(evaluation.patient):
            return False
        turns, measured = len(evaluation.agents), self._curve(evaluation.agents)
        curve = self._curve(self._chain(reference))
        probability = sign_test(measured, curve)
        if overlap_of(measured, curve) is None:
            # 0: every score is higher than all of the reference.
            return probability > 0 and turns < EVALUATION_TURNS
        return LEVEL <= probability <= LEVEL + max(0.0, 1.0 - turns / EVALUATION_TURNS)

    def _longest_waiting(self, evaluator: int) -> Seat | None:
        """Returns the patient seat that was evaluated or replaced the longest ago, and that no other evaluator has."""
        taken = {
            one.patient.seat
            for one in self._evaluations
            if one.agents[0].seat != evaluator and one.agents[-1] is self._seats[one.agents[0].seat].agents[-1]
        }
        waiting = [seat for seat in self._with_role(PATIENT) if seat.newest is not None and seat.number not in taken]
        return min(waiting, key=lambda seat: (self._served(seat), seat.number), default=None)

    def _served(self, seat: Seat) -> int:
        """Returns the number of the agent that last evaluated a seat, or with which it was last replaced."""
        begun = [one.agents[0].number for one in self._evaluations if one.patient.seat == seat.number]
        return max([*begun, self._lineage(seat.agents[-1])[0].number])

    def _measured_curves(self) -> dict[int, list[float]]:
        """Returns the scores of the last evaluation of each patient seat that was not replaced since, by seat."""
        last = {one.patient.seat: one for one in self._evaluations if not self._is_replaced(one.patient)}
        curves = {seat: self._curve(one.agents) for seat, one in last.items()}
        return {seat: curves[seat] for seat in sorted(curves) if curves[seat]}

    def _is_replaced(self, patient: Agent) -> bool:
        seat = self._seats.get(patient.seat)
        return seat is None or patient.agent_id not in {one.agent_id for one in self._lineage(seat.agents[-1])}

    def _reference(self, evaluation: Evaluation) -> int | None:
        """Returns the greedy seat that has the hyperparameters of an evaluation; None if it was replaced."""
        values = self._values(evaluation.agents[0])
        return next((number for number, own in self._greedy_values.items() if own == values), None)

    def _chain(self, number: int) -> list[Agent]:
        """Returns the agents of a greedy seat since its hyperparameters last changed, by number.

        Those of an evaluation that it continues from count as well.
        """
        agent: Agent | None = self._seats[number].agents[-1]
        values, chain = self._values(self._seats[number].agents[-1]), list[Agent]()
        while agent is not None and self._values(agent) == values:
            if agent.seat != number and self.role(agent.seat) != EVALUATOR:
                break
            chain.append(agent)
            agent = _parent(agent, self._history)
        return chain[::-1]

    def _lineage(self, agent: Agent) -> list[Agent]:
        """Returns an agent and its ancestors in the same seat, by number."""
        lineage, parent = [agent], _parent(agent, self._history)
        while parent is not None and parent.seat == agent.seat:
            lineage.append(parent)
            parent = _parent(parent, self._history)
        return lineage[::-1]

    def _evaluations_of(self, seat: Seat) -> list[Evaluation]:
        """Returns the evaluations of a seat, the oldest first."""
        found: list[Evaluation] = []
        for agent in seat.agents:
            parent = _parent(agent, self._history)
            if parent is None:
                continue
            if self.role(parent.seat) == PATIENT:
                found.append(Evaluation((agent,), parent))
            elif found and found[-1].agents[-1] is parent and self._values(parent) == self._values(agent):
                found[-1] = Evaluation((*found[-1].agents, agent), found[-1].patient)
        return found

    def _with_role(self, role: str) -> list[Seat]:
        return [seat for seat in self._seats.values() if self.role(seat.number) == role]

    def _values(self, agent: Agent) -> dict[str, Value]:
        values = {name: plain(value) for name, value in agent.hyperparameters.fields.items()}
        return unstructural(agent.algorithm, self._situation, values)

    def _newest(self, evaluation: Evaluation) -> Candidate | None:
        scored = [self._history.last[one.agent_id] for one in evaluation.agents if one.agent_id in self._history.last]
        return scored[-1] if scored else None

    def _curve(self, agents: Iterable[Agent]) -> list[float]:
        """Returns the scores of agents that are given by number."""
        return [score for agent in agents for score in self._scores.get(agent.agent_id, ())]


def _parent(agent: Agent, history: History) -> Agent | None:
    """Returns the parent of an agent, if it is in the history and has a seat."""
    parent = history.by_id.get(agent.parent_agent_ids[0]) if agent.parent_agent_ids else None
    return parent if parent is not None and parent.HasField("seat") else None


def _seat(number: int, history: History) -> Seat:
    return next(seat for seat in seats_of(history) if seat.number == number)


propose = partial(propose_for_seat, select=select, explore=explore)
"""The strategy."""
