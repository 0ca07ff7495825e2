"""Plans the next evaluation of an agent: what its score has to beat, and in which other epochs to score it. Pure.

The score of an agent decides whether its candidate enters the board and whether it leads. The bar is the candidate that
it has to beat in order to enter: the earlier one of the agent's trial if it is on the board, else the last one of a
full board. While the board has room every agent enters, so the bar is the first one. In order to lead it has to beat
the first one. Once both are decided and it does not lead, the evaluation can stop: more episodes would change neither.
"""

from leaderboard.ranking.board import Board, trial_key
from leaderboard.ranking.paired import ranked_error, ranked_score
from leaderboard.ranking.score_history import ScoreHistory
from podrace.comparison.paired import LEAST_CORRELATION
from podrace.leaderboard.v1.leaderboard_pb2 import Agent, Bar, Candidate, PlanEvaluationResponse

LEADERS = 4
"""Agents at the top of the board that are scored in two epochs."""
ANCHORS = 3
"""Policies that are scored both in an epoch and in the one before."""


def plan(board: Board, capacity: int, history: ScoreHistory, agent: Agent, epoch: int) -> PlanEvaluationResponse:
    """Returns the plan of an agent's next evaluation.

    Args:
        board: Candidates by rank.
        capacity: Places on the board.
        history: All scores of the tournament.
        agent: The agent.
        epoch: Evaluation epoch that it will be scored in.
    """
    answer = PlanEvaluationResponse(other_epochs=anchors_wanted(board, history, agent, epoch))
    if reference := bar_candidate(board, capacity, _trial_of(agent)):
        answer.bar.CopyFrom(bar_of(reference, history, epoch))
        if reference is not board[0]:
            answer.lead.CopyFrom(bar_of(board[0], history, epoch))
    return answer


def bar_candidate(board: Board, capacity: int, trial: int) -> Candidate | None:
    """Returns the candidate that an agent of a trial has to beat; None while the board is empty."""
    if not board:
        return None
    own = next((candidate for candidate in board if trial_key(candidate) == trial), None)
    return own or (board[-1] if len(board) >= capacity else board[0])


def bar_of(reference: Candidate, history: ScoreHistory, epoch: int) -> Bar:
    """Returns the bar that a candidate sets for scores of an epoch."""
    bar = Bar(
        agent_id=reference.agent_id,
        score=ranked_score(reference) + history.effects().of(epoch),
        standard_error=ranked_error(reference),
    )
    same = reference.HasField("evaluation_epoch") and reference.evaluation_epoch == epoch
    if same and history.correlation > LEAST_CORRELATION and not reference.evaluator_fault:
        bar.episode_returns.extend(reference.episode_returns)
    return bar


def anchors_wanted(board: Board, history: ScoreHistory, agent: Agent, epoch: int) -> list[int]:
    """Returns the other epochs in which the next policy of an agent should be scored.

    Policies that are scored in two epochs show how much the epochs differ. The leaders are taken, because comparisons
    among them decide. Uncorrelated episodes have no common difficulty to be measured.
    """
    if epoch == 0 or history.correlation <= LEAST_CORRELATION:
        return []
    if _trial_of(agent) not in set(map(trial_key, board[:LEADERS])):
        return []
    pair = {epoch, epoch - 1}
    there = sum(pair <= {result.epoch for result in anchor} for anchor in history.anchors)
    return [epoch - 1] if there < ANCHORS else []


def _trial_of(agent: Agent) -> int:
    return agent.trial if agent.HasField("trial") else agent.number
