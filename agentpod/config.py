"""Defines the configuration of a pod, which is the same for all its roles, and of the processes around it."""

from dataclasses import dataclass, field
from pathlib import Path

from podrace.errors import InvalidArgument
from podrace.gpus import MIG
from podrace.limits.config import Allowed
from podrace.plugins.server import ChildConfig
from podrace.progress_deadlines import ProgressDeadlines
from podrace.rpc import is_local
from podrace.telemetry import TelemetryConfig

LEADER_ROLE = "learner"
"""Role of the first learner of a host. On the first host it is the leader of the pod."""
FIRST_WORKER = "worker-0"
"""Role of the first worker of a host. In a fused pod that is isolated, its process is the evaluator as well."""
FUSED = "fused"
"""The layout in which the process of a learner also has its worker."""


def learner_role(index: int) -> str:
    """Returns the role of a learner, by its number on its host, from 0."""
    return f"{LEADER_ROLE}-{index}" if index else LEADER_ROLE


@dataclass(frozen=True)
class PodConfig:
    """The configuration of one pod. The process launcher sends it to the fork server as JSON."""

    pod_id: str
    """Name of the pod; empty: the name of this host."""
    orchestrator: str
    """Address of the orchestrator, which hands out assignments."""
    leaderboard: str
    """Address of the leaderboard, to which candidates are submitted."""
    store: str
    """Checkpoint store, for instance `folder:///path`."""
    folder: Path
    """Folder of the sockets of the roles. Its path must be short: Linux limits socket paths to 107 bytes."""
    store_access: str = "direct"
    """`direct`: the pod opens the store with its credentials, `granted`: the leaderboard grants it each transfer."""
    tournament_id: str = ""
    """Used in log lines only; what to train comes with the assignment."""
    layout: str = FUSED
    """`separate` (one process for each role) or `fused` (one process for each learner, which also has its worker; that
    of the leader has the evaluator too)."""
    isolated: bool = False
    """Whether workers and evaluator import user code, which must not run in the process of the leader. The worker of
    each learner of a fused pod is then a separate process; the first of them has the evaluator too."""
    user_code_uid: int = 0
    """User and group id of workers and evaluator, which run user code; 0: those of the leader."""
    user_code_folder: str = ""
    """Folder that user code may enter, with the leader's lifeline and the folders of the roles that run it; unused if
    `user_code_uid` is 0."""
    workers: int = 1
    """Number of workers of each learner."""
    worker_address: str = ""
    """Address of a third-party worker, which is not a process of the pod; empty: the pod has its own workers."""
    worker_class: str = ""
    """Class of a user that the workers run, `python:module:Class`; empty: that of podrace."""
    learners: int = 1
    """Number of learners, the leader included."""
    hosts: int = 1
    """Number of hosts that the learners are distributed over, in order; the leader is on the first."""
    host_index: int = 0
    """Number of this host, from 0. Each host numbers its roles and devices from 0."""
    head: str = ""
    """`host:port` at which followers on other hosts reach the leader; unused with a single host."""
    precision: str = "float32"
    """Precision of matrix products and convolutions in updates: `pod.precision` of the specification."""
    plane: str = "auto"
    """Plane between the processes of the pod, or `auto`: `pod.plane` of the specification."""
    captured: bool = True
    """Whether what runs on a GPU is replayed from CUDA graphs where that is possible (agentpod.capture)."""
    cores: float = 1.0
    """CPU cores reserved for the pod; used to account for the compute it spends."""
    memory_bytes: int = 0
    """Memory reserved for all processes together, which replay memories must fit into; 0: unknown."""
    cpus: tuple[int, ...] = ()
    """CPUs that the processes may run on; empty: any."""
    threads: int = 1
    """Number of torch threads of a role."""
    gpus: tuple[str, ...] = ()
    """GPUs of the pod: UUIDs, or numbers among the GPUs that its processes see, in the order of the PCI bus.
    In a container these are its own."""
    pod_gpus: int = 0
    """Number of GPUs that are reserved for the pod on this host, over all its containers; 0: those in `gpus`."""
    host: str = "127.0.0.1"
    """Address of this machine, reachable from the other processes of the pod."""
    insecure: bool = False
    """Allow ports that other machines reach without TLS: that of the leader, for the other hosts, and that of the
    tensors which an evaluator plugin on another machine reads."""
    unprotected_collectives: bool = False
    """Allow several hosts. Their collectives (gloo, NCCL), and the store through which members find each other, are
    neither encrypted nor authenticated: a network policy or a private network must protect them."""
    log_path: str = ""
    """File that the output of the processes is appended to; empty: inherited."""
    lifeline: str = ""
    """Lifeline of the process that the pod must not outlive; empty: none."""
    orphan_seconds: float = 60.0
    """Without an answer from the orchestrator for this long, the pod publishes and exits."""
    standing: bool = False
    """Whether the pod was started from outside and works for any tournament. When it is drained, it completes
    its assignment and asks for another one. Only a signal or its lifeline ends it."""
    token: str = field(default="", metadata={"secret": True})
    """Token that identifies the pod to the orchestrator and the leaderboard; only its leader has it."""
    token_file: str = ""
    """File with the token, for a pod that was started from outside (`podrace token` makes one); empty: `token`, or on
    the machine of the services a token that the pod signs with the key of its user."""
    key: str = field(default="", metadata={"secret": True})
    """Secret that all hosts of the pod know, by which followers identify themselves to a leader on another host. Needed
    with several hosts."""
    progress: ProgressDeadlines = field(default_factory=ProgressDeadlines)
    """How long a role may make no progress."""
    role_wait_seconds: float = 15.0
    """If a lost role does not serve again within this time, the pod exits."""
    plane_folder: Path = Path("/dev/shm")
    """Folder of the files of the plane `shared`; every role must see the same folder."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs and metrics."""
    allow: Allowed = field(default_factory=Allowed)
    """What the specifications of tournaments may name, whatever the orchestrator hands out."""

    def __post_init__(self) -> None:
        """Rejects roles and hosts that cannot work together.

        Raises:
            InvalidArgument: The learners of a fused pod have several workers each, the learners cannot be distributed
                equally over the hosts, `head` is missing, or collectives would cross a network that the operator has
                not declared to be protected.
        """
        if self.layout == FUSED and self.workers > 1:
            raise InvalidArgument(
                f"workers = {self.workers}: each learner of a fused pod has one; use layout = 'separate'"
            )
        if self.learners % self.hosts or not 0 <= self.host_index < self.hosts:
            raise InvalidArgument(
                f"learners = {self.learners}, hosts = {self.hosts}, host_index = {self.host_index}: expected an equal"
                " number of learners on each host, and an index below their number"
            )
        if self.hosts > 1 and not self.head.rpartition(":")[2].isdigit():
            raise InvalidArgument(
                f"head = {self.head!r}: expected host:port, at which the other hosts reach the leader"
            )
        if self.hosts > 1 and not self.unprotected_collectives and not is_local(f"{self.host}:0"):
            raise InvalidArgument(
                f"hosts = {self.hosts}, host = {self.host!r}: collectives between hosts have no TLS; protect them by a"
                " network policy or a private network, and set unprotected_collectives = true"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the processes on this host, the first learner first."""
        learners = tuple(map(learner_role, range(self.learners_here)))
        own_workers = 0 if self.worker_address else self.workers * self.learners_here
        workers = tuple(f"worker-{index}" for index in range(own_workers))
        if self.layout == FUSED:
            return (*learners, *workers) if self.isolated else learners
        return (*learners, *workers, "evaluator")

    @property
    def learners_here(self) -> int:
        """Number of learners on this host."""
        return self.learners // self.hosts

    @property
    def first_learner(self) -> int:
        """Number, within the pod, of the first learner on this host, whose role is `learner`."""
        return self.host_index * self.learners_here

    def learner_of(self, role: str) -> int:
        """Returns the number, within the pod, of the learner that has a role on this host."""
        return self.first_learner + int(role.partition("-")[2] or 0)

    def workers_of(self, learner: int) -> tuple[str, ...]:
        """Returns the roles of the workers that a learner of this host calls."""
        first = (learner - self.first_learner) * self.workers
        return tuple(f"worker-{first + index}" for index in range(self.workers))

    def lifeline_of(self, learner: int) -> Path | None:
        """Returns the lifeline that a follower holds while it lives; None for a follower on another host."""
        index = learner - self.first_learner
        return self.folder / f"{learner_role(index)}.lifeline" if 0 <= index < self.learners_here else None

    @property
    def region_prefix(self) -> str:
        """Prefix of the names of all shared-memory files that a learner of this pod creates."""
        return f"podrace-{self.pod_id}-"

    @property
    def leader_lifeline(self) -> Path:
        """Lifeline that the first learner of this host holds while it lives. On the first host that is the leader."""
        return (self.shared_folder or self.folder) / "leader.lifeline"

    @property
    def shared_folder(self) -> Path | None:
        """Folder that processes with user code may enter, if their user id is not that of the leader."""
        return Path(self.user_code_folder) if self.user_code_uid else None

    @property
    def code_folder(self) -> Path:
        """Folder of processes with user code, which has their sockets."""
        return self.shared_folder / "code" if self.shared_folder else self.folder

    def is_other_user(self, role: str) -> bool:
        """Whether the process of a role has another user id than the leader."""
        return bool(self.user_code_uid) and self.runs_user_code(role)

    def folder_of(self, role: str) -> Path:
        """Returns the folder in which the process of a role may write its files."""
        return self.code_folder if self.is_other_user(role) else self.folder

    def runs_user_code(self, role: str) -> bool:
        """Whether the process of a role imports user code, if the specification names any."""
        return self.isolated and not role.startswith(LEADER_ROLE)

    @property
    def leader_address(self) -> str:
        """GRPC address of the leader, on this host or another."""
        return self.head if self.host_index else self.address(LEADER_ROLE)

    def device(self, role: str) -> str:
        """Returns the torch device that a role computes on; GPU numbers count the GPUs of the pod.

        Learners take the GPUs in turn. Workers and the evaluator of a separate pod take the GPUs that no learner uses
        if the plane is `group`, or if it is `auto` and there is a GPU for each role. Otherwise they share that of their
        learner.
        """
        if not self.gpus:
            return "cpu"
        return f"cuda:{0 if self._partitioned else self._gpu_index(role)}"

    def visible_gpus(self, role: str) -> tuple[str, ...]:
        """Returns the GPUs that the process of a role sees, which are numbered in this order.

        A process can use only one instance of a partitioned GPU, so it sees only its own.
        """
        return (self.gpus[self._gpu_index(role)],) if self._partitioned else self.gpus

    @property
    def gpus_of_pod(self) -> int:
        """Number of GPUs that are reserved for the pod on this host."""
        return self.pod_gpus or len(self.gpus)

    @property
    def one_gpu_each(self) -> bool:
        """Whether each role is a separate process, and there is a GPU for each of them on this host."""
        return self.layout != FUSED and self.gpus_of_pod >= len(self.roles)

    @property
    def _partitioned(self) -> bool:
        return any(gpu.startswith(MIG) for gpu in self.gpus)

    def _gpu_index(self, role: str) -> int:
        kind, _, number = role.partition("-")
        group = self.plane == "group" or (self.plane == "auto" and self.one_gpu_each)
        if group and kind != LEADER_ROLE:
            unused = range(self.learners_here, len(self.gpus)) or range(len(self.gpus))
            place = int(number) if kind == "worker" else self.workers * self.learners_here
            return unused[place % len(unused)]
        return self._learner_with(role) % len(self.gpus)

    def _learner_with(self, role: str) -> int:
        """Returns the number, on this host, of the learner that a role belongs to."""
        kind, _, number = role.partition("-")
        return int(number or 0) // (self.workers if kind == "worker" else 1)

    @property
    def shares_processes(self) -> bool:
        """Whether the process of each learner also has its worker, and that of the leader the evaluator."""
        return self.layout == FUSED and not self.isolated

    def process_of(self, role: str) -> str:
        """Returns the role whose process runs a role: in a fused pod, processes run several."""
        if self.shares_processes:
            return learner_role(self._learner_with(role))
        return FIRST_WORKER if self.layout == FUSED and role == "evaluator" else role

    def socket(self, role: str) -> Path:
        """Returns the socket of a role."""
        process = self.process_of(role)
        return (self.code_folder if self.runs_user_code(process) else self.folder) / f"{process}.sock"

    def address(self, role: str) -> str:
        """Returns the gRPC address of a role."""
        if self.worker_address and role.startswith("worker"):
            return self.worker_address
        return f"unix:{self.socket(role)}"


@dataclass(frozen=True)
class FunctionConfig(ChildConfig):
    """The child process of a pod that serves a user's evaluation function."""

    threads: int = 1
    """torch threads."""
    device: str = "cpu"
    """Device that the policies and the simulator compute on, as torch names it."""
    allow: Allowed = field(default_factory=Allowed)
    """As in PodConfig."""


@dataclass(frozen=True)
class RetrainConfig:
    """The process that trains an agent again, to compare."""

    store: str
    """Checkpoint store of the agent; it is only read."""
    manifest: str
    """Digest of the manifest of the checkpoint that the training has to reach."""
    folder: Path
    """Folder for everything that this training writes; removed in the end. Its path must be short, see PodConfig."""
    lifeline: str = ""
    """As in PodConfig."""
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Logs."""
    allow: Allowed = field(default_factory=Allowed)
    """As in PodConfig."""


@dataclass(frozen=True)
class InspectConfig:
    """Configuration of `agentpod inspect`."""

    memory_bytes: int = 0
    """Data memory that the process may allocate; 0: no limit."""
    user_id: int = 0
    """User that the process becomes before it runs user code; 0: it stays the user that started it."""
    allow: Allowed = field(default_factory=Allowed)
    """What the specification may name."""


@dataclass(frozen=True)
class ForkServerConfig:
    """The fork server, the parent of all roles that the process launcher starts."""

    socket: Path
    """Socket that it listens at for requests, one JSON object a line."""
    lifeline: str = ""
    """As in PodConfig."""
    idle_seconds: float = 30.0
    """Without children and connections for this long, it exits."""
