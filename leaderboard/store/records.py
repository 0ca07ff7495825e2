"""Reads and writes agents and submissions in the database. All SQL of the leaderboard is in this package.

Agents and submissions have one common order: an agent records the last submission before it was generated. When an
agent ended or failed is recorded once, as the position of the first agent that was generated afterwards; a list of
unfinished agents for each new agent would grow with the pool.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from leaderboard.ranking.board import Board, Standing, rank_key
from podrace.database import LARGEST_NUMBER, Transaction
from podrace.errors import AGENT_UNKNOWN, NamedResource, NotFound
from podrace.leaderboard.v1.leaderboard_pb2 import (
    VERDICT_ACCEPTED,
    Agent,
    Candidate,
    SubmitCandidateResponse,
)
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

PAGE_SIZE = 100
"""Submissions that are read from the database together."""


@dataclass(frozen=True)
class Submission:
    """A scored checkpoint that was judged."""

    answer: SubmitCandidateResponse
    """The answer when it arrived; a repeated submission gets the same one."""
    standing: Standing
    """Its current standing."""
    lease_epoch: int
    """Lease epoch under which it was submitted."""
    request_id: str
    """Id of the request that was judged."""


@dataclass(frozen=True)
class Generation:
    """An agent, and the position in the log at which it was generated."""

    agent: Agent
    """The agent."""
    depth: int
    """Generations from the first fresh ancestor; 0 for a fresh agent."""
    after_sequence: int
    """Sequence number of the last submission before it, of any tournament."""
    position: int
    """Position in the order in which agents were generated, over all tournaments."""
    ended: int | None = None
    """Position of the first agent of the tournament that was generated after this one ended; None while unfinished."""
    failed: int | None = None
    """Position of the first agent of the tournament that was generated after this one failed; None if it did not."""


def timestamp(seconds: float) -> Timestamp:
    """Converts a wall time in seconds since the epoch."""
    stamp = Timestamp()
    stamp.FromNanoseconds(round(seconds * 1e9))
    return stamp


# --- tournaments -------------------------------------------------------------------------------------------------


def find_spec(transaction: Transaction, tournament_id: str) -> TournamentSpec | None:
    """Returns the specification of the first request of a tournament; None for a tournament without agents."""
    rows = transaction.execute("SELECT spec FROM tournaments WHERE tournament_id = ?", tournament_id)
    return TournamentSpec.FromString(rows[0][0]) if rows else None


def get_spec(transaction: Transaction, tournament_id: str) -> TournamentSpec:
    """As find_spec; raises NotFound for a tournament without agents."""
    spec = find_spec(transaction, tournament_id)
    if spec is None:
        raise NotFound(f"tournament {tournament_id!r}: no agent of it was ever generated here")
    return spec


def add_spec(transaction: Transaction, tournament_id: str, spec: TournamentSpec) -> None:
    """Records the specification of a tournament."""
    transaction.execute("INSERT INTO tournaments VALUES (?, ?)", tournament_id, spec.SerializeToString())


# --- agents ------------------------------------------------------------------------------------------------------

_GENERATION = "agent, depth, after_sequence, generation, ended, failed"


def _generation(row: tuple[Any, ...]) -> Generation:
    agent, *rest = row
    return Generation(Agent.FromString(agent), *rest)


def find_generation(transaction: Transaction, agent_id: str) -> Generation | None:
    """Returns an agent by its id; None if it was never generated."""
    rows = transaction.execute(f"SELECT {_GENERATION} FROM agents WHERE agent_id = ?", agent_id)
    return _generation(rows[0]) if rows else None


def get_generation(transaction: Transaction, agent_id: str) -> Generation:
    """As find_generation; raises NotFound (AGENT_UNKNOWN) for an agent that was never generated."""
    generation = find_generation(transaction, agent_id)
    if generation is None:
        named = NamedResource("agent", agent_id)
        raise NotFound(f"agent {agent_id!r} was never generated here", reason=AGENT_UNKNOWN, resource=named)
    return generation


def find_agents(transaction: Transaction, agent_ids: Iterable[str]) -> dict[str, Agent]:
    """Returns those of some agents that were generated, by id."""
    found = (find_generation(transaction, agent_id) for agent_id in agent_ids)
    return {generation.agent.agent_id: generation.agent for generation in found if generation}


def list_generations(transaction: Transaction, tournament_id: str, *, from_number: int = 0) -> list[Generation]:
    """Returns the agents of a tournament from a number on, in the order in which they were generated."""
    rows = transaction.execute(
        f"SELECT {_GENERATION} FROM agents WHERE tournament_id = ? AND number >= ? ORDER BY generation",
        tournament_id,
        from_number,
    )
    return [_generation(row) for row in rows]


def page_of_generations(transaction: Transaction, tournament_id: str, from_number: int, limit: int) -> list[Generation]:
    """Returns at most `limit` agents of a tournament from a number on, by number."""
    rows = transaction.execute(
        f"SELECT {_GENERATION} FROM agents WHERE tournament_id = ? AND number >= ? ORDER BY number LIMIT ?",
        tournament_id,
        from_number,
        limit,
    )
    return [_generation(row) for row in rows]


def last_generations(transaction: Transaction) -> list[Generation]:
    """Returns the last agent of each tournament."""
    rows = transaction.execute(
        f"SELECT {_GENERATION} FROM agents"
        " WHERE generation IN (SELECT max(generation) FROM agents GROUP BY tournament_id)"
    )
    return [_generation(row) for row in rows]


def first_generation(transaction: Transaction, tournament_id: str) -> Generation | None:
    """Returns the first agent of a tournament; None if there is none yet."""
    rows = transaction.execute(
        f"SELECT {_GENERATION} FROM agents WHERE tournament_id = ? ORDER BY generation LIMIT 1", tournament_id
    )
    return _generation(rows[0]) if rows else None


def unfinished_or_new(transaction: Transaction, position: int) -> list[Agent]:
    """Returns agents of all tournaments that are not recorded as ended, or were generated after a position."""
    rows = transaction.execute(
        "SELECT agent FROM agents WHERE ended IS NULL OR generation > ? ORDER BY generation", position
    )
    return [Agent.FromString(data) for (data,) in rows]


def count_unfinished_children(
    transaction: Transaction, tournament_id: str, parent_agent_ids: Collection[str]
) -> dict[str, int]:
    """Returns how many children of some agents have not ended, by the parent's id; parents without any are missing."""
    if not parent_agent_ids:
        return {}
    places = ", ".join("?" * len(parent_agent_ids))
    rows = transaction.execute(
        "SELECT parent, count(*) FROM agents WHERE tournament_id = ? AND ended IS NULL"
        f" AND parent IN ({places}) GROUP BY parent",
        tournament_id,
        *parent_agent_ids,
    )
    return dict(rows)


def numbers_of_agents(transaction: Transaction, tournament_id: str, begin: int, end: int) -> set[int]:
    """Returns the numbers from `begin` to `end` (exclusive) for which an agent was generated."""
    rows = transaction.execute(
        "SELECT number FROM agents WHERE tournament_id = ? AND number >= ? AND number < ?", tournament_id, begin, end
    )
    return {number for (number,) in rows}


def generations_after(transaction: Transaction, tournament_id: str, position: int) -> list[Generation]:
    """Returns the agents of a tournament after a position, in the order in which they were generated."""
    rows = transaction.execute(
        f"SELECT {_GENERATION} FROM agents WHERE generation > ? AND tournament_id = ? ORDER BY generation",
        position,
        tournament_id,
    )
    return [_generation(row) for row in rows]


def agent_at(transaction: Transaction, position: int) -> str:
    """Returns the id of the agent at a position; empty if there is none."""
    rows = transaction.execute("SELECT agent_id FROM agents WHERE generation = ?", position)
    return str(rows[0][0]) if rows else ""


def last_position(transaction: Transaction, tournament_id: str) -> int:
    """Returns the position of the last agent of a tournament; 0 before the first."""
    rows = transaction.execute("SELECT max(generation) FROM agents WHERE tournament_id = ?", tournament_id)
    return int(rows[0][0] or 0)


def next_position(transaction: Transaction) -> int:
    """Returns the position of the next agent."""
    return int(transaction.execute("SELECT coalesce(max(generation), 0) + 1 FROM agents")[0][0])


def numbers_of_unfinished(transaction: Transaction, tournament_id: str) -> dict[str, int]:
    """Returns the numbers of the agents of a tournament that are not recorded as ended, by id."""
    rows = transaction.execute(
        "SELECT agent_id, number FROM agents WHERE tournament_id = ? AND ended IS NULL", tournament_id
    )
    return dict(rows)


def set_ended(transaction: Transaction, agent_id: str, position: int) -> None:
    """Records that an agent had ended when the one at `position` was generated."""
    transaction.execute("UPDATE agents SET ended = ? WHERE agent_id = ?", position, agent_id)


def note_failed(transaction: Transaction, tournament_id: str, failed: Collection[str], *, position: int) -> list[str]:
    """Records that agents have failed, and returns those that were not recorded before.

    Ids that were never generated are ignored.
    """
    known = transaction.execute(
        "SELECT agent_id FROM agents WHERE tournament_id = ? AND failed IS NOT NULL", tournament_id
    )
    new = []
    for agent_id in sorted(set(failed).difference(agent_id for (agent_id,) in known)):
        new += transaction.execute(
            "UPDATE agents SET failed = ? WHERE agent_id = ? AND tournament_id = ? RETURNING agent_id",
            position,
            agent_id,
            tournament_id,
        )
    return [agent_id for (agent_id,) in new]


def count_agents_below(transaction: Transaction, tournament_id: str, number: int) -> int:
    """Returns how many agents of a tournament with a lower number were generated."""
    rows = transaction.execute(
        "SELECT count(*) FROM agents WHERE tournament_id = ? AND number < ?", tournament_id, number
    )
    return int(rows[0][0])


def add_generation(transaction: Transaction, generation: Generation) -> None:
    """Records a new agent."""
    agent = generation.agent
    transaction.execute(
        "INSERT INTO agents (generation, agent_id, tournament_id, number, depth, after_sequence, parent, create_time,"
        " agent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        generation.position,
        agent.agent_id,
        agent.tournament_id,
        agent.number,
        generation.depth,
        generation.after_sequence,
        agent.parent_agent_ids[0] if agent.parent_agent_ids else None,
        transaction.now,
        agent.SerializeToString(),
    )


def unfinished_children(
    transaction: Transaction, tournament_id: str, parent_agent_ids: Collection[str]
) -> list[tuple[str, str, int]]:
    """Returns parent, child and the child's number for each child of some agents that is not recorded as ended."""
    if not parent_agent_ids:
        return []
    places = ", ".join("?" * len(parent_agent_ids))
    rows = transaction.execute(
        "SELECT parent, agent_id, number FROM agents WHERE tournament_id = ? AND ended IS NULL"
        f" AND parent IN ({places}) ORDER BY parent, number, agent_id",
        tournament_id,
        *parent_agent_ids,
    )
    return [(parent, child, number) for parent, child, number in rows]


# --- submissions -------------------------------------------------------------------------------------------------

_SUBMISSION = "answer, verdict, reason, lease_epoch, request_id"


def _submission(row: tuple[Any, ...]) -> Submission:
    answer, verdict, reason, lease_epoch, request_id = row
    return Submission(SubmitCandidateResponse.FromString(answer), Standing(verdict, reason), lease_epoch, request_id)


def last_sequence(transaction: Transaction) -> int:
    """Returns the sequence number of the last submission of any tournament; 0 before the first."""
    # The newest submission may have been deleted with its tournament; agents of others were generated after it.
    last = transaction.execute("SELECT coalesce(max(sequence), 0) FROM submissions")
    after = transaction.execute("SELECT after_sequence FROM agents ORDER BY generation DESC LIMIT 1")
    return max(int(row[0]) for row in (*last, *after))


def find_submission(transaction: Transaction, candidate_id: str) -> Submission | None:
    """Returns a submission by the digest of its manifest; None if there is none."""
    rows = transaction.execute(f"SELECT {_SUBMISSION} FROM submissions WHERE candidate_id = ?", candidate_id)
    return _submission(rows[0]) if rows else None


def list_submissions(
    transaction: Transaction, tournament_id: str, *, after_sequence: int = 0, limit: int = LARGEST_NUMBER
) -> list[Submission]:
    """Returns submissions of a tournament by arrival.

    Args:
        transaction: The transaction.
        tournament_id: The tournament.
        after_sequence: Only submissions with a higher sequence number are returned.
        limit: At most this many.
    """
    rows = transaction.execute(
        f"SELECT {_SUBMISSION} FROM submissions WHERE tournament_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        tournament_id,
        after_sequence,
        limit,
    )
    return [_submission(row) for row in rows]


def candidate_at(transaction: Transaction, sequence: int) -> str:
    """Returns the id of the candidate with a sequence number; empty if there is none."""
    rows = transaction.execute("SELECT candidate_id FROM submissions WHERE sequence = ?", sequence)
    return str(rows[0][0]) if rows else ""


def list_candidates(transaction: Transaction, tournament_id: str, *, after_sequence: int = 0) -> list[Candidate]:
    """Returns the candidates of a tournament after a sequence number, by arrival, as they were judged then."""
    submissions = list_submissions(transaction, tournament_id, after_sequence=after_sequence)
    return [submission.answer.candidate for submission in submissions]


def each_candidate(transaction: Transaction, tournament_id: str) -> Iterator[Candidate]:
    """Yields the same as `list_candidates`, and holds only a page of them in memory."""
    after = 0
    while page := list_submissions(transaction, tournament_id, after_sequence=after, limit=PAGE_SIZE):
        for submission in page:
            yield submission.answer.candidate
        after = page[-1].answer.candidate.sequence


def board_submissions(transaction: Transaction, tournament_id: str) -> list[Submission]:
    """Returns the submissions on the board of a tournament, by rank."""
    rows = transaction.execute(
        f"SELECT {_SUBMISSION} FROM submissions WHERE tournament_id = ? AND verdict = ?",
        tournament_id,
        VERDICT_ACCEPTED,
    )
    return sorted(map(_submission, rows), key=lambda submission: rank_key(submission.answer.candidate))


def read_board(transaction: Transaction, tournament_id: str) -> Board:
    """Returns the board of a tournament."""
    return tuple(submission.answer.candidate for submission in board_submissions(transaction, tournament_id))


def add_submission(transaction: Transaction, submission: Submission) -> None:
    """Records a judged submission."""
    candidate = submission.answer.candidate
    transaction.execute(
        "INSERT INTO submissions"
        " (sequence, candidate_id, tournament_id, request_id, lease_epoch, answer, verdict, reason)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        candidate.sequence,
        candidate.candidate_id,
        candidate.tournament_id,
        submission.request_id,
        submission.lease_epoch,
        submission.answer.SerializeToString(),
        submission.standing.verdict,
        submission.standing.reason,
    )


def set_standing(transaction: Transaction, candidate_id: str, standing: Standing) -> None:
    """Records the standing of a submission if it has changed."""
    transaction.execute(
        "UPDATE submissions SET verdict = ?, reason = ? WHERE candidate_id = ? AND (verdict, reason) != (?, ?)",
        standing.verdict,
        standing.reason,
        candidate_id,
        standing.verdict,
        standing.reason,
    )
