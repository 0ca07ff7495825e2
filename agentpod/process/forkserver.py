"""Forks the roles of pods from a process that has already imported torch and grpc, which makes a pod start ten times
faster.

The fork server runs one selector on one thread. It never creates a gRPC, CUDA or thread-pool object, which would not
survive a fork. It outlives the orchestrator that sends it requests, as its pods do. It reaps its children, restarts a
worker or an evaluator that died while its leader lives, and releases the shared memory of dead pods. The rest of the
cleanup is up to the launcher, and so are pods that outlive their fork server.

Protocol, one JSON object a line:
{"pod": {<fields of PodConfig>}, "secrets": true}  ->  {"pid": 123} | {"error": "...", "passing": true}
`passing`: the machine lacks something now, which says nothing about the pod.

Roles inherit the memory and the environment of this process, and some of them run user code. So neither ever has a
token or a key of the checkpoint store. With `secrets` a file descriptor comes with the line, which the leader alone
reads (agentpod.process.forked_role).
"""

import contextlib
import errno
import gc
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from agentpod.config import LEADER_ROLE, ForkServerConfig, PodConfig
from agentpod.process.forked_role import NO_SECRETS, BecomeRole, RunRole, close_secrets, make_code_folder, run_child
from podrace import config as configuration
from podrace.errors import InvalidArgument, PodraceError
from podrace.ownership import make_private_folder
from podrace.processes import lifeline
from podrace.processes.identity import Process, boot_id
from podrace.tensor_transport import shared

_log = structlog.get_logger(__name__)
MAXIMUM_RESTARTS = 10
"""Restarts of one role of one pod. After that the role stays down, and the leader ends the pod."""
POLL_SECONDS = 1.0
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Errors of a machine that lacks something now."""


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
            ready = selector.select(POLL_SECONDS)
            # A launcher that asks for a pod may know already that its leader has exited.
            self.reap(restart=not orphaned)
            for key, _ in ready:
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

    def answer(self, line: bytes, secrets: int = NO_SECRETS) -> dict[str, Any]:
        """Executes one request and returns the answer; `secrets` is a descriptor for the leader."""
        try:
            request = json.loads(line)
            pod = configuration.build(PodConfig, request["pod"], source="request")
            return {"pid": self.start(pod, secrets)}
        except PodraceError as error:
            return {"error": error.message}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"not a valid request: {error!r}"}
        except OSError as error:
            return {"error": f"cannot start the pod: {error}", "passing": error.errno in PASSING}

    def start(self, pod: PodConfig, secrets: int = NO_SECRETS) -> int:
        """Forks the roles of a pod, the leader first, unless the pod is running already.

        Args:
            pod: Its configuration.
            secrets: Descriptor that the leader alone reads.

        Returns:
            The pid of the leader.

        Raises:
            FailedPrecondition: A folder of the pod belongs to another user, or others can enter it.
            OSError: A role could not be forked, or the pod could not be recorded. Roles already forked are killed.
        """
        for child in self.children.values():
            if child.pod.pod_id == pod.pod_id and child.role == LEADER_ROLE:
                return child.pid
        make_private_folder(pod.folder, "choose another runtime_folder for the orchestrator")
        make_code_folder(pod)
        self.started[pod.pod_id] = time.time()
        pids: list[int] = []
        try:
            pids.extend(self._fork(ForkedRole(pod, role, 0), secrets) for role in pod.roles)
            self._write_pod_file(pod)
        except OSError:
            # Without its file no launcher would find the pod again.
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise
        return pids[0]

    def _fork(self, child: ForkedRole, secrets: int = NO_SECRETS) -> int:
        child.pid = os.fork()
        if child.pid == 0:
            # Unwinds the parent's stack, which closes the parent's sockets in this process, and continues in `main`.
            raise BecomeRole(child.pod, child.role, secrets)
        self.children[child.pid] = child
        return child.pid

    def _write_pod_file(self, pod: PodConfig) -> None:
        roles = {
            child.role: {
                "pid": child.pid,
                "start_ticks": start_ticks(child.pid),
                "folder": str(pod.folder_of(child.role)),
            }
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
            "user_code_uid": pod.user_code_uid,
            "log_path": str(pod.log_path),
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


class _Connection:
    """The connection of one launcher, with the received part of an incomplete line."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._received = b""
        self._descriptors: list[int] = []

    def __call__(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data, received, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            self._descriptors += received
        if not data:
            for descriptor in self._descriptors:
                os.close(descriptor)
            selector.unregister(connection)
            connection.close()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            # The launcher waits for each answer, so this is the descriptor of this line.
            secrets = self._descriptors.pop(0) if self._descriptors else NO_SECRETS
            answer = json.dumps(self._server.answer(line, secrets)).encode() + b"\n"
            close_secrets(secrets)
            with contextlib.suppress(OSError):
                connection.sendall(answer)


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
