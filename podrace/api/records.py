"""Defines what the Python interface returns: frozen dataclasses, and lists of them that become pandas frames."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from podrace.errors import Unimplemented

if TYPE_CHECKING:
    import pandas

Row = TypeVar("Row")


class Rows(list[Row]):
    """A list of dataclasses, all of one kind.

    Args:
        rows: The dataclasses.
        kind: Their class, which names the columns of an empty list; None: an empty list has no columns.
    """

    def __init__(self, rows: Iterable[Row] = (), *, kind: type[Row] | None = None) -> None:
        super().__init__(rows)
        self._kind = kind

    def to_frame(self) -> "pandas.DataFrame":
        """Returns a pandas frame with one row for each entry and one column for each field.

        Raises:
            Unimplemented: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise Unimplemented("to_frame() needs the package pandas: pip install pandas") from None
        kind = self._kind or (type(self[0]) if self else None)
        columns = [one.name for one in fields(kind)] if kind else []  # type: ignore[arg-type]
        return pandas.DataFrame([[getattr(row, name) for name in columns] for row in self], columns=columns)


@dataclass(frozen=True)
class TournamentStatus:
    """A tournament as it is now."""

    tournament_id: str
    state: str
    """`running`, `completed`, `cancelled` or `failed`."""
    reason: str
    """Why it is in this state, in one line."""
    pause_reason: str
    """Why it is paused; empty if it is not."""
    running_seconds: float
    """How long it has been running, without pauses."""
    environment_steps: int
    """Environment steps of all agents together."""
    steps_per_second: float
    """Recent rate of environment steps."""
    agents: int
    """Number of agents so far."""
    failed_agents: int
    stopped_agents: int
    """Number of agents that the strategy stopped early."""
    best_score: float | None
    """Score of the candidate that ranks first, or reported score of the champion; None before the first."""
    best_score_standard_error: float | None
    labels: dict[str, str]
    """Labels that users have given it."""


@dataclass(frozen=True)
class Candidate:
    """A scored checkpoint of an agent."""

    candidate_id: str
    """SHA-256 of the manifest of the checkpoint."""
    agent_id: str
    algorithm: str
    rank: int | None
    """Rank on the board, 1 is best; None: not on the board."""
    score: float
    """Mean return over the evaluation episodes."""
    standard_error: float
    estimate: float | None
    """What the board ranks it by."""
    episodes: int
    environment_steps: int
    """Environment steps that the policy was trained on, including those of the agent's ancestors."""
    agent_environment_steps: int
    """Environment steps of the agent itself."""
    verdict: str
    """`accepted`, `refused`, `evicted` or `held`."""
    reason: str
    """Why, in one line."""
    submit_time: datetime
    episode_metrics: Mapping[str, float]
    """Means of the measures that the simulator reports for single episodes, by name."""


@dataclass(frozen=True)
class LearningPoint:
    """A point of a learning curve: a snapshot, evaluated on episodes that were not used for selection."""

    curve: str
    """`champion`, or the id of an agent."""
    agent_id: str
    """Agent of the policy."""
    algorithm: str
    seconds: float
    """Running time of the tournament at the snapshot."""
    environment_steps: int
    """Champion: steps of all agents, which found it together. Agent: steps of its policy and its ancestors."""
    mean: float
    """Mean return over the episodes."""
    standard_deviation: float | None
    """Standard deviation of the return over episodes; None for a single episode."""
    standard_error: float | None
    episodes: int


@dataclass(frozen=True)
class ChampionPart:
    """A checkpoint that acts as the champion, alone or as a member of an ensemble."""

    candidate_id: str
    agent_id: str
    algorithm: str
    hyperparameters: Mapping[str, Any]


@dataclass(frozen=True)
class Champion:
    """The best policy of a tournament; final once the tournament has ended."""

    score: float
    """Its reported score; while the tournament runs, the score of the candidate that ranks first."""
    standard_error: float
    members: tuple[ChampionPart, ...]
    """The checkpoints that act together, the best first; one, unless the champion is an ensemble."""
    reason: str
    """How it was selected, in one line; empty before."""

    @property
    def agent_id(self) -> str:
        """Agent of the champion; of an ensemble, that of its first member."""
        return self.members[0].agent_id

    @property
    def candidate_id(self) -> str:
        """Id of the champion's checkpoint; of an ensemble, that of its first member."""
        return self.members[0].candidate_id


@dataclass(frozen=True)
class Agent:
    """A member of the population."""

    agent_id: str
    number: int
    """Position in the sequence of agents of the tournament, from 0."""
    algorithm: str
    hyperparameters: Mapping[str, Any]
    origin: str
    """`fresh`, `clone`, `mutation` or `continuation`."""
    parent_agent_ids: tuple[str, ...]
    seed: int
    reason: str
    """Why it was created, in one line."""
    create_time: datetime


@dataclass(frozen=True)
class Event:
    """A decision of the orchestrator with its reason, or something that happened to a pod."""

    sequence: int
    time: datetime
    kind: str
    message: str
    pod_id: str
    """Pod that it concerns; empty if none."""
    agent_id: str
    """Agent that it concerns; empty if none."""
