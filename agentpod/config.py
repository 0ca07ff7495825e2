"""Configuration of a pod, the same for all its roles; the process launcher passes it to the nursery as JSON."""

from dataclasses import dataclass, field
from pathlib import Path

from podrace.telemetry import TelemetryConfig

HEAD_ROLE = "learner"
"""The learner that heads the pod."""


def follower(index: int) -> str:
    """Name of another learner, from 1."""
    return f"{HEAD_ROLE}-{index}"


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
    precision: str = "float32"
    """Key of podrace.catalog.PRECISIONS."""
    plane: str = "auto"
    """Key of podrace.catalog.PLANES."""
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

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the processes, the head first."""
        if self.layout == "fused":
            return (HEAD_ROLE,)
        followers = (follower(index) for index in range(1, self.learners))
        workers = (f"worker-{index}" for index in range(self.workers * self.learners))
        return (HEAD_ROLE, *followers, *workers, "evaluator")

    def workers_of(self, learner: int) -> tuple[str, ...]:
        """Names of the workers that one learner calls."""
        return tuple(f"worker-{learner * self.workers + index}" for index in range(self.workers))

    def lifeline_of(self, learner: int) -> Path:
        """Lifeline that a learner other than the head holds for as long as it lives."""
        return self.folder / f"{follower(learner)}.lifeline"

    @property
    def region_prefix(self) -> str:
        """Begins the name of every file of shared memory that a learner of this pod makes."""
        return f"podrace-{self.pod_id}-"

    @property
    def head_lifeline(self) -> Path:
        """Lifeline the head holds for as long as it lives."""
        return self.folder / "head.lifeline"

    def device(self, role: str) -> str:
        """Where a role computes, in torch's words, whose GPUs are those that the pod may see.

        Learners take the GPUs in turn. Workers and the evaluator compute where the plane has its memory: on their
        learner's GPU for `cuda`; for `group` on those that the learners leave over, if they do.
        """
        if not self.gpus:
            return "cpu"
        kind, _, number = role.partition("-")
        index = int(number or 0)
        if kind == HEAD_ROLE:
            return f"cuda:{index % len(self.gpus)}"
        if self.plane == "group":
            over = range(self.learners, len(self.gpus)) or range(len(self.gpus))
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
class FunctionConfig:
    """The process that calls a user's evaluation function."""

    function: str
    """`module:function`."""
    socket: Path
    """Where it answers."""
    lifeline: str
    """Of the head, which it does not outlive."""
    threads: int = 1
    """torch threads."""
    device: str = "cpu"
    """Where it computes, in torch's words."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs; it has no metrics of its own."""


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
class NurseryConfig:
    """The parent that forks the roles."""

    socket: Path
    """Where it takes orders: one JSON object a line."""
    lifeline: str = ""
    """As in PodConfig."""
    idle_seconds: float = 30.0
    """Without children and connections for this long, it goes."""
