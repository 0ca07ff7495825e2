"""Configuration of a pod, the same for all its roles; the process launcher passes it to the nursery as JSON."""

from dataclasses import dataclass, field
from pathlib import Path

from podrace.errors import InvalidArgument
from podrace.plugins.server import ChildConfig
from podrace.telemetry import TelemetryConfig

LEADER_ROLE = "learner"
"""The learner that heads the pod."""


def follower(index: int) -> str:
    """Name of another learner, from 1."""
    return f"{LEADER_ROLE}-{index}"


@dataclass(frozen=True)
class PodConfig:
    """One pod."""

    pod_id: str
    """Its name; empty: that of this host."""
    orchestrator: str
    """Where assignments are acquired."""
    leaderboard: str
    """Where candidates are submitted."""
    store: str
    """Checkpoint store, for instance `folder:///path`."""
    folder: Path
    """Where the roles' sockets lie; short, because Linux limits socket paths to 107 bytes."""
    tournament_id: str = ""
    """For log lines only; what to train comes with the assignment."""
    layout: str = "fused"
    """`separate` (a process a role) or `fused` (one process)."""
    workers: int = 1
    """Number of workers of each learner."""
    learners: int = 1
    """Number of learners, the head among them."""
    hosts: int = 1
    """Number of hosts that the learners are divided over, in order; the head is on the first."""
    host_index: int = 0
    """Which of them this is. Roles and devices are numbered anew on each."""
    head: str = ""
    """`host:port` at which the learners of other hosts reach the head; of no meaning on a single one."""
    precision: str = "float32"
    """Key of podrace.specification.catalog.PRECISIONS."""
    plane: str = "auto"
    """Key of podrace.specification.catalog.PLANES."""
    cores: float = 1.0
    """Processor cores reserved, for the account of compute spent."""
    memory_bytes: int = 0
    """Memory reserved, all processes together: what replay memories must fit into; 0: nobody knows."""
    cpus: tuple[int, ...] = ()
    """Processors its processes may run on; empty: any."""
    threads: int = 1
    """torch threads of a role."""
    gpus: tuple[int, ...] = ()
    """GPUs of the pod; see `device`."""
    host: str = "127.0.0.1"
    """Address of this machine that other processes of the pod can reach."""
    log_path: str = ""
    """File that stdout and stderr of its processes are appended to; empty: inherited."""
    lifeline: str = ""
    """Lifeline of whoever the pod must not outlive; empty: nobody."""
    orphan_seconds: float = 60.0
    """Without an answer from the orchestrator for this long, the pod publishes and goes."""
    standing: bool = False
    """It came by itself and works for any tournament: told to go it gives back what it holds and asks again. Only a
    signal ends it."""
    role_wait_seconds: float = 15.0
    """A role that was lost and does not come back within this time ends the pod."""
    plane_folder: Path = Path("/dev/shm")
    """Where the plane `shared` keeps its files; every role must see the same."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""

    def __post_init__(self) -> None:
        """Refuses hosts that cannot work together.

        Raises:
            InvalidArgument: The learners cannot be divided over the hosts, or nobody would find the head.
        """
        if self.learners % self.hosts or not 0 <= self.host_index < self.hosts:
            raise InvalidArgument(
                f"learners = {self.learners}, hosts = {self.hosts}, host_index = {self.host_index}: expected an equal"
                " number of learners on each host, and an index below their number"
            )
        if self.hosts > 1 and not self.head.rpartition(":")[2].isdigit():
            raise InvalidArgument(f"head = {self.head!r}: expected host:port, where the other hosts reach the head")

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the processes, the head first."""
        if self.layout == "fused":
            return (LEADER_ROLE,)
        followers = (follower(index) for index in range(1, self.learners_here))
        workers = (f"worker-{index}" for index in range(self.workers * self.learners_here))
        return (LEADER_ROLE, *followers, *workers, "evaluator")

    @property
    def learners_here(self) -> int:
        """Learners on this host."""
        return self.learners // self.hosts

    @property
    def first_learner(self) -> int:
        """Which learner of the pod is the first on this host, whose role is `learner`."""
        return self.host_index * self.learners_here

    def learner_of(self, role: str) -> int:
        """Which learner of the pod has that role on this host."""
        return self.first_learner + int(role.partition("-")[2] or 0)

    def workers_of(self, learner: int) -> tuple[str, ...]:
        """Names of the workers that one learner of this host calls."""
        first = (learner - self.first_learner) * self.workers
        return tuple(f"worker-{first + index}" for index in range(self.workers))

    def lifeline_of(self, learner: int) -> Path | None:
        """Lifeline that a learner other than the head holds for as long as it lives; None for one of another host."""
        index = learner - self.first_learner
        return self.folder / f"{follower(index)}.lifeline" if 0 <= index < self.learners_here else None

    @property
    def region_prefix(self) -> str:
        """Begins the name of every file of shared memory that a learner of this pod makes."""
        return f"podrace-{self.pod_id}-"

    @property
    def leader_lifeline(self) -> Path:
        """Lifeline that the first learner of this host, mostly the head, holds for as long as it lives."""
        return self.folder / "leader.lifeline"

    @property
    def leader_address(self) -> str:
        """GRPC address of the head, wherever it is."""
        return self.head if self.host_index else self.address(LEADER_ROLE)

    def device(self, role: str) -> str:
        """Where a role computes, in torch's words, whose GPUs are those that the pod may see.

        Learners take the GPUs in turn. Workers and the evaluator compute where the plane has its memory: on their
        learner's GPU for `cuda`; for `group` on those that the learners leave over, if they do.
        """
        if not self.gpus:
            return "cpu"
        kind, _, number = role.partition("-")
        index = int(number or 0)
        if kind == LEADER_ROLE:
            return f"cuda:{index % len(self.gpus)}"
        if self.plane == "group":
            over = range(self.learners_here, len(self.gpus)) or range(len(self.gpus))
            return f"cuda:{over[index % len(over)]}"
        learner = index // self.workers if kind == "worker" else 0
        return f"cuda:{learner % len(self.gpus)}"

    def socket(self, role: str) -> Path:
        """Where a role answers; in a fused pod the head answers for all."""
        return self.folder / f"{'learner' if self.layout == 'fused' else role}.sock"

    def address(self, role: str) -> str:
        """GRPC address of a role."""
        return f"unix:{self.socket(role)}"


@dataclass(frozen=True)
class FunctionConfig(ChildConfig):
    """The child process of a pod that serves a user's evaluation function."""

    threads: int = 1
    """torch threads."""
    device: str = "cpu"
    """Device that the policies and the simulator compute on, as torch names it."""


@dataclass(frozen=True)
class RetrainConfig:
    """What trains an agent again, to compare."""

    store: str
    """Checkpoint store of the agent; only read."""
    manifest: str
    """Digest of the manifest of the agent's checkpoint that is to be reached."""
    folder: Path
    """Where everything of this training lies; removed in the end. Its name is short: Linux limits socket paths."""
    lifeline: str = ""
    """As in PodConfig."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs."""


@dataclass(frozen=True)
class ForkServerConfig:
    """The parent that forks the roles."""

    socket: Path
    """Where it takes orders: one JSON object a line."""
    lifeline: str = ""
    """As in PodConfig."""
    idle_seconds: float = 30.0
    """Without children and connections for this long, it goes."""
