"""Rates the candidates of a tournament by their games, and chooses the opponents of the next policy. Pure.

The rating of a candidate is fitted when it arrives, to its results against players whose ratings are known, and is its
score from then on; like every score it does not change later. Fitting all ratings again would compare a candidate with
scores that were recorded on another scale. Known are the newest MOST_RATED candidates and the newest MOST_LEADERS that
led when they arrived. Leaders stay opponents, so a policy that forgets how to beat an earlier champion loses rating.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from leaderboard.ranking.board import Board, trial_key
from leaderboard.ranking.ratings import BUILT_IN, SCALE, Rating, Ratings, Result, most_informative
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Candidate, PlanEvaluationResponse
from podrace.tournament.v1.tournament_pb2 import OpponentsSpec

MOST_RATED = 96
MOST_LEADERS = 16
MOST_TRAINING_OPPONENTS = 64
RETURN = "return"
"""Measure that holds the mean return against the built-in opponent, in place of the score."""
BOARD = "board"
"""Value of `opponents.training`."""


class GameHistory:
    """The rated candidates of a tournament in order of arrival.

    rating = history.rating(new)
    history.add(new)              # with that rating as its score
    """

    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self._known: OrderedDict[str, Candidate] = OrderedDict()
        self._leaders: deque[str] = deque(maxlen=MOST_LEADERS)
        self._best = float("-inf")
        self._newest: dict[int, str] = {}
        """Newest candidate of each trial."""
        for candidate in candidates:
            self.add(candidate)

    def copy(self) -> "GameHistory":
        """Returns a copy, which can be continued separately."""
        other = GameHistory()
        other._known, other._leaders = self._known.copy(), self._leaders.copy()
        other._best, other._newest = self._best, dict(self._newest)
        return other

    @property
    def leaders(self) -> list[Candidate]:
        """The newest candidates that had the highest rating when they arrived, the newest last."""
        return [self._known[name] for name in self._leaders]

    def rating(self, candidate: Candidate) -> Rating:
        """Rates a candidate that has just arrived, with its matches."""
        known = {name: Rating(one.score, one.standard_error) for name, one in self._known.items()}
        results = results_of(candidate, {BUILT_IN, *known})
        return Ratings(results, known).rating(candidate.candidate_id)

    def add(self, candidate: Candidate) -> None:
        """Adds the next candidate, with its rating as score; one without matches is left out."""
        if not candidate.matches:
            return
        name = candidate.candidate_id
        self._known[name] = candidate
        self._newest[trial_key(candidate)] = name
        if candidate.score > self._best:
            self._best = candidate.score
            self._leaders.append(name)
        others = [one for one in self._known if one not in self._leaders]
        for dropped in others[: max(0, len(others) - MOST_RATED)]:
            del self._known[dropped]

    def expected(self, agent: Agent) -> float:
        """Returns the strength that an agent probably has: that of its trial, or of what it started from, or 0."""
        trial = agent.trial if agent.HasField("trial") else agent.number
        found = self._known.get(self._newest.get(trial, agent.starting_checkpoint.manifest_digest))
        return found.score / SCALE if found else 0.0


def results_of(candidate: Candidate, names: Iterable[str]) -> Iterator[Result]:
    """Yields the results of a candidate against players with these names."""
    known = set(names)
    for match in candidate.matches:
        if match.opponent_candidate_id in known:
            yield Result(candidate.candidate_id, match.opponent_candidate_id, match.wins, match.draws, match.losses)


def rate(candidate: Candidate, history: GameHistory) -> None:
    """Replaces the score of a candidate by its rating, and keeps its mean return as a measure."""
    rating = history.rating(candidate)
    candidate.episode_metrics[RETURN] = candidate.score
    candidate.score, candidate.standard_error = rating.value, rating.error
    # They are returns against the built-in opponent and say nothing about the difference of two ratings.
    candidate.ClearField("episode_returns")


def add_opponents(
    answer: PlanEvaluationResponse, spec: OpponentsSpec, board: Board, history: GameHistory, agent: Agent
) -> None:
    """Adds the opponents of the policy of an agent to a plan.

    Args:
        answer: The plan.
        spec: `[opponents]` of the tournament.
        board: Candidates by rank.
        history: The rated candidates.
        agent: The agent.
    """
    possible = {one.candidate_id: one for one in (*board, *reversed(history.leaders))}
    if spec.rated:
        strengths = [(name, one.score / SCALE) for name, one in possible.items()]
        chosen = most_informative(history.expected(agent), strengths, spec.matches)
        answer.opponents.extend(_checkpoint(possible[name]) for name in chosen)
    if spec.training == BOARD:
        answer.training_opponents.extend(map(_checkpoint, list(possible.values())[:MOST_TRAINING_OPPONENTS]))


def _checkpoint(candidate: Candidate) -> Checkpoint:
    return Checkpoint(agent_id=candidate.agent_id, manifest_digest=candidate.candidate_id)
