"""Makes the requests that a generator or an updater gets, for boards of every size, from a seed. Pure."""

import hashlib
from collections.abc import Iterator
from random import Random

from google.protobuf.struct_pb2 import Value

from podrace.evolution.v1.evolution_pb2 import JudgeCandidateRequest, ProposeAgentRequest, RankedCandidate
from podrace.leaderboard.v1.leaderboard_pb2 import ORIGIN_FRESH, VERDICT_ACCEPTED, VERDICT_UNSPECIFIED, Agent, Candidate
from podrace.specification.files import from_values
from podrace.tournament.v1.tournament_pb2 import HyperparameterSpec, TournamentSpec

TOURNAMENT = "conformance"
BOARD_SIZES = (0, 1, 2, 5, 20, 100, 500)
"""Sizes of the boards of proposals; a leaderboard sends at most 500 candidates."""
LARGEST_JUDGED = 1000
REQUESTS_PER_SIZE = 3
VALUES = {
    "name": TOURNAMENT,
    "environment": {"id": "cartpole"},
    "algorithms": {"ppo": {}, "dqn": {}},
    "objective": {"target_return": 475.0},
}


def default_spec() -> TournamentSpec:
    """Returns the specification of the tournaments, with every default filled in."""
    return from_values(VALUES, source="podrace conform")


def proposal_requests(spec: TournamentSpec, seed: int) -> Iterator[ProposeAgentRequest]:
    """Yields requests for agents, from an empty board to the largest one."""
    random = Random(seed)
    for size in BOARD_SIZES:
        for _ in range(REQUESTS_PER_SIZE):
            number = size + random.randrange(100)
            request = ProposeAgentRequest(
                tournament_id=TOURNAMENT, spec=spec, number=number, seed=random.getrandbits(64)
            )
            for rank, (agent, candidate) in enumerate(board(spec, size, random), 1):
                candidate.rank = rank
                ranked = RankedCandidate(candidate=candidate, agent=agent, unfinished_children=random.randrange(3))
                request.candidates.append(ranked)
            request.unfinished_agent_ids.extend(f"{TOURNAMENT}-a{size + k}" for k in range(random.randrange(5)))
            yield request


def judgement_requests(spec: TournamentSpec, seed: int) -> Iterator[JudgeCandidateRequest]:
    """Yields candidates to judge: of few and of many episodes, with good and bad scores, on boards of every size."""
    random = Random(seed)
    for size in (*BOARD_SIZES, LARGEST_JUDGED):
        for episodes in (1, 8, 1000):
            *others, (agent, candidate) = board(spec, size + 1, random)
            candidate.episodes, candidate.standard_error = episodes, 0.0 if episodes == 1 else random.random()
            candidate.score *= random.choice((1.0, -1e9, 1e9))
            candidate.verdict, candidate.reason, candidate.sequence = VERDICT_UNSPECIFIED, "", 0
            request = JudgeCandidateRequest(tournament_id=TOURNAMENT, spec=spec, candidate=candidate, agent=agent)
            for rank, (_, other) in enumerate(others, 1):
                other.rank = rank
                request.board.append(other)
            yield request


def board(spec: TournamentSpec, size: int, random: Random) -> list[tuple[Agent, Candidate]]:
    """Returns agents and their candidates, best first."""
    scores = sorted((random.gauss(200.0, 100.0) for _ in range(size)), reverse=True)
    return [_entry(spec, number, score, random) for number, score in enumerate(scores)]


def _entry(spec: TournamentSpec, number: int, score: float, random: Random) -> tuple[Agent, Candidate]:
    name = random.choice(sorted(spec.algorithms))
    agent = Agent(
        agent_id=f"{TOURNAMENT}-a{number}",
        tournament_id=TOURNAMENT,
        number=number,
        algorithm=name,
        origin=ORIGIN_FRESH,
        seed=random.getrandbits(64),
        reason="drawn",
    )
    for key, declared in sorted(spec.algorithms[name].hyperparameters.items()):
        agent.hyperparameters.fields[key].CopyFrom(_drawn(declared, random))
    candidate = Candidate(
        candidate_id=hashlib.sha256(agent.agent_id.encode() + bytes(f"{score}", "ascii")).hexdigest(),
        tournament_id=TOURNAMENT,
        agent_id=agent.agent_id,
        algorithm=name,
        agent_number=number,
        score=score,
        standard_error=random.random() * 10.0,
        episodes=16,
        environment_steps=(number + 1) * 1000,
        agent_environment_steps=1000,
        verdict=VERDICT_ACCEPTED,
        reason="among the best",
        sequence=number + 1,
    )
    return agent, candidate


def _drawn(declared: HyperparameterSpec, random: Random) -> Value:
    """Returns the value of an agent: the ends of a range, and the value with a probability, among others."""
    if declared.choices:
        return random.choice(list(declared.choices))
    if not declared.HasField("low"):
        return declared.value
    extra = [0.0] if declared.zero_probability and declared.low > 0.0 and declared.scale != 3 else []
    drawn = random.choice([declared.low, declared.high, random.uniform(declared.low, declared.high), *extra])
    whole = float(declared.low).is_integer() and float(declared.value.number_value).is_integer() and declared.high > 2
    return Value(number_value=round(drawn) if whole else drawn)
