"""Forks the roles of pods from a process that has already imported torch and grpc, which makes a pod start ten times
faster.

The fork server runs one selector on one thread. It never creates a gRPC, CUDA or thread-pool object, which would not
survive a fork. It outlives the orchestrator that sends it requests, as its pods do. It reaps its children, restarts a
worker or an evaluator that died while its leader lives, and releases the shared memory of dead pods. The rest of the
cleanup is up to the launcher, and so are pods that outlive their fork server.

Protocol, one JSON object a line:
{"pod": {<fields of PodConfig>}, "leader_variables": {"NAME": "value"}}  ->  {"pid": 123} | {"error": "..."}

The environment of this process, which all roles inherit, has no key of the checkpoint store. The leader alone gets
these variables, and they are not kept.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from agentpod.config import LEADER_ROLE, ForkServerConfig, PodConfig
from podrace import config as configuration
from podrace.errors import InvalidArgument, PodraceError
from podrace.limits.user_environment import TOKEN_PREFIXES, leader_variables
from podrace.ownership import make_private_folder
from podrace.printable import printable
from podrace.processes import lifeline
from podrace.processes.identity import Process, boot_id
from podrace.tensor_transport import shared

_log = structlog.get_logger(__name__)
MAXIMUM_RESTARTS = 10
"""Restarts of one role of one pod. After that the role stays down, and the leader ends the pod."""
POLL_SECONDS = 1.0

RunRole = Callable[[PodConfig, str], int]
"""Runs a role of a pod and returns its exit code."""


@dataclass
class ForkedRole:
    """A forked process with one role of a pod."""

    pod: PodConfig
    role: str
    pid: int
    restarts: int = 0


@dataclass
class ForkServer:
    """Forks roles, reaps them and restarts them.

    Attributes:
        config: Where to listen, and when to exit.
        children: Running children by pid.
        started: Wall-clock start time of each pod, in seconds since 1970.
        exit_codes: Exit code of the leader of each pod that has ended; negative: the number of a signal.
    """

    config: ForkServerConfig
    children: dict[int, ForkedRole] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Serves until it has been idle for long enough, or its lifeline is lost and its children have exited."""
        with contextlib.ExitStack() as resources:
            selector = resources.enter_context(selectors.DefaultSelector())
            listener = resources.enter_context(_listen(self.config.socket))
            selector.register(listener, selectors.EVENT_READ, self._accept)
            wakeup = resources.enter_context(woken_by_signals())
            selector.register(wakeup, selectors.EVENT_READ, drain)
            line = lifeline.attach(self.config.lifeline) if self.config.lifeline else None
            if line is not None:
                resources.callback(os.close, line)
                selector.register(line, selectors.EVENT_READ, None)
            resources.callback(_close_connections, selector)
            self._serve(selector, orphaned=bool(self.config.lifeline) and line is None)

    def _serve(self, selector: selectors.BaseSelector, *, orphaned: bool) -> None:
        idle_since = time.monotonic()
        while True:
            for key, _ in selector.select(POLL_SECONDS):
                if key.data is None:
                    orphaned = True
                    selector.unregister(key.fileobj)
                else:
                    key.data(selector, key.fileobj)
            self.reap(restart=not orphaned)
            connections = sum(isinstance(key.data, _Connection) for key in selector.get_map().values())
            if self.children or (connections and not orphaned):
                idle_since = time.monotonic()
            if not self.children and (orphaned or time.monotonic() - idle_since > self.config.idle_seconds):
                return

    # --- requests ---------------------------------------------------------------------------------------------

    def _accept(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        selector.register(connection, selectors.EVENT_READ, _Connection(self))

    def answer(self, line: bytes) -> dict[str, Any]:
        """Executes one request and returns the answer."""
        try:
            request = json.loads(line)
            pod = configuration.build(PodConfig, request["pod"], source="request")
            return {"pid": self.start(pod, request.get("leader_variables"))}
        except PodraceError as error:
            return {"error": error.message}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"not a valid request: {error!r}"}
        except OSError as error:
            return {"error": f"cannot start the pod: {error}"}

    def start(self, pod: PodConfig, variables: Mapping[str, str] | None = None) -> int:
        """Forks the roles of a pod, the leader first, unless the pod is running already.

        Args:
            pod: Its configuration.
            variables: Environment variables for the leader alone.

        Returns:
            The pid of the leader.

        Raises:
            FailedPrecondition: The folder of the pod belongs to another user, or others can enter it.
            OSError: A role could not be forked, or the pod could not be recorded. Roles already forked are killed.
        """
        for child in self.children.values():
            if child.pod.pod_id == pod.pod_id and child.role == LEADER_ROLE:
                return child.pid
        make_private_folder(pod.folder, "choose another runtime_folder for the orchestrator")
        self.started[pod.pod_id] = time.time()
        pids: list[int] = []
        try:
            pids.extend(self._fork(ForkedRole(pod, role, 0), variables) for role in pod.roles)
            self._write_pod_file(pod)
        except OSError:
            # Without its file no launcher would find the pod again.
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise
        return pids[0]

    def _fork(self, child: ForkedRole, variables: Mapping[str, str] | None = None) -> int:
        child.pid = os.fork()
        if child.pid == 0:
            # Unwinds the parent's stack, which closes the parent's sockets in this process, and continues in `main`.
            raise BecomeRole(child.pod, child.role, variables if child.role == LEADER_ROLE else None)
        self.children[child.pid] = child
        return child.pid

    def _write_pod_file(self, pod: PodConfig) -> None:
        roles = {
            child.role: {"pid": child.pid, "start_ticks": start_ticks(child.pid)}
            for child in self.children.values()
            if child.pod.pod_id == pod.pod_id
        }
        content = {
            "pod_id": pod.pod_id,
            "tournament_id": pod.tournament_id,
            "boot_id": boot_id(),
            "start_time": self.started[pod.pod_id],
            "layout": pod.layout,
            "cores": pod.cores,
            "memory_bytes": pod.memory_bytes,
            "gpus": pod.gpus,
            "cpus": pod.cpus,
            "roles": roles,
        }
        path = pod.folder / "pod.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content))
        temporary.rename(path)

    # --- children ---------------------------------------------------------------------------------------------

    def reap(self, *, restart: bool) -> None:
        """Reaps children that have exited; restarts workers and evaluators among them if `restart`."""
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child:
                code = os.waitstatus_to_exitcode(status)
                _log.info("role exited", pod_id=child.pod.pod_id, role=child.role, exit_code=code)
                if child.role == LEADER_ROLE:
                    self.exit_codes[child.pod.pod_id] = code
                    self._terminate_roles(child.pod)
                elif restart and code != 0:
                    # A role with exit code 0 was asked to stop: its leader has exited or is about to.
                    self._restart(child)
                self._release_memory(child.pod)

    def _terminate_roles(self, pod: PodConfig) -> None:
        """Terminates roles of a dead leader that had not yet started to watch its lifeline."""
        for child in self.children.values():
            if child.pod.pod_id == pod.pod_id:
                os.kill(child.pid, signal.SIGTERM)

    def _release_memory(self, pod: PodConfig) -> None:
        """Removes the shared memory that a pod has left behind, once none of its roles runs any more."""
        if any(child.pod.pod_id == pod.pod_id for child in self.children.values()):
            return
        with contextlib.suppress(OSError):
            if left := shared.remove_regions(pod.region_prefix, pod.plane_folder):
                _log.warning("removed the shared memory of a dead pod", pod_id=pod.pod_id, files=len(left))

    def _restart(self, child: ForkedRole) -> None:
        leader_lives = any(
            other.pod.pod_id == child.pod.pod_id and other.role == LEADER_ROLE for other in self.children.values()
        )
        if not leader_lives or child.restarts >= MAXIMUM_RESTARTS:
            return
        child.restarts += 1
        _log.warning("restarting a role", pod_id=child.pod.pod_id, role=child.role, restarts=child.restarts)
        try:
            self._fork(child)
            self._write_pod_file(child.pod)
        except OSError as error:
            # The leader waits for the role until its deadline and then ends the pod.
            _log.error("a role could not be restarted", pod_id=child.pod.pod_id, role=child.role, error=str(error))


class BecomeRole(BaseException):
    """Raised in a forked child to leave the stack of the fork server; carries the role that the child runs."""

    def __init__(self, pod: PodConfig, role: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__(role)
        self.pod, self.role, self.variables = pod, role, dict(variables or {})


class _Connection:
    """The connection of one launcher, with the received part of an incomplete line."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._received = b""

    def __call__(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(1 << 16)
        if not data:
            selector.unregister(connection)
            connection.close()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(self._server.answer(line)).encode() + b"\n")


def start_ticks(pid: int) -> int:
    """Returns the start time of a process in clock ticks since boot, or 0 if it has exited.

    Together with the pid and the boot id it identifies the process: a pid alone may be reused.
    """
    process = Process.find(pid)
    return process.start_ticks if process else 0


def main(config: ForkServerConfig, run_role: RunRole) -> int:
    """Runs the fork server and returns its exit code. A forked child runs its role and does not return."""
    # Garbage is collected once and the rest is frozen, so that the children share these pages.
    gc.collect()
    gc.freeze()
    try:
        ForkServer(config).run()
        return 0
    except BecomeRole as caught:
        child = caught
    # Outside the handler and without the parent's stack, so that nothing of the parent stays alive.
    child.__traceback__ = None
    os._exit(run_child(child, run_role))


def run_child(child: BecomeRole, run_role: RunRole) -> int:
    """Runs the role of a forked child and returns its exit code; never raises."""
    code = 1
    try:
        _detach(child.pod)
        _set_variables(child)
        code = run_role(child.pod, child.role)
    except PodraceError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _detach(pod: PodConfig) -> None:
    """Gives a forked child its own session, log file and processors."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if pod.log_path:
        log = os.open(pod.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    if pod.cpus:
        os.sched_setaffinity(0, pod.cpus)


def _set_variables(child: BecomeRole) -> None:
    """Gives the leader its variables, and takes those of leaders from all other roles."""
    if child.role != LEADER_ROLE:
        tokens = [name for name in os.environ if name.startswith(TOKEN_PREFIXES)]
        for name in (*leader_variables(os.environ, child.pod.allow), *tokens):
            del os.environ[name]
    os.environ.update(child.variables)


@contextlib.contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """Listens at `path`.

    Raises:
        InvalidArgument: Another fork server already listens there.
    """
    probe = _connect(str(path))
    if probe:
        probe.close()
        raise InvalidArgument(f"a fork server already listens at {path}")
    owner = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # The socket gets its name only once it listens. The socket of a dead fork server is replaced.
        temporary = path.with_suffix(f".{owner}")
        listener.bind(str(temporary))
        listener.listen()
        temporary.rename(path)
        try:
            yield listener
        finally:
            # A forked child unwinds through here too, and must not remove the socket.
            if os.getpid() == owner:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def woken_by_signals() -> Iterator[socket.socket]:
    """Provides a socket that becomes readable when a child has exited."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    with reader, writer:
        yield reader


def _close_connections(selector: selectors.BaseSelector) -> None:
    """Closes the parent's connections in a forked child; otherwise their other ends would never see them close."""
    for key in list(selector.get_map().values()):
        if isinstance(key.data, _Connection) and isinstance(key.fileobj, socket.socket):
            key.fileobj.close()


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def drain(selector: selectors.BaseSelector, wakeup: socket.socket) -> None:
    """Reads what signals have written to the socket of `woken_by_signals`."""
    with contextlib.suppress(BlockingIOError):
        wakeup.recv(4096)
