"""The nursery: a parent that has imported torch and grpc and forks the roles of pods, so that a pod starts in a tenth
of a second.

It runs one selector on one thread and never creates a gRPC, CUDA or thread-pool object, which would not survive the
fork. It outlives the orchestrator that gives it orders (its pods do, too), reaps its children, and restarts a worker or
an evaluator that died while its head lives. Of a dead pod it gives the shared memory back, which is dear; the rest of
cleaning up, and pods that have outlived their nursery, are the launcher's business.

One JSON object a line, in and out:  {"pod": {<fields of PodConfig>}}  ->  {"pid": 123} | {"error": "..."}
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from agentpod.config import LEADER_ROLE, ForkServerConfig, PodConfig
from podrace import config as configuration
from podrace.errors import InvalidArgument, PodraceError
from podrace.processes import lifeline
from podrace.tensor_transport import shared

_log = structlog.get_logger(__name__)
MAXIMUM_RESTARTS = 10
"""Of one role of one pod; then it stays down, and the head ends the pod."""
POLL_SECONDS = 1.0

RunRole = Callable[[PodConfig, str], int]


@dataclass
class ForkedRole:
    """A forked role."""

    pod: PodConfig
    role: str
    pid: int
    restarts: int = 0


@dataclass
class ForkServer:
    """Forks, reaps, restarts.

    Attributes:
        become: What a forked child runs; its result is the exit code.
        children: By pid.
    """

    config: ForkServerConfig
    become: RunRole
    children: dict[int, ForkedRole] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Serves until it is idle for long, or its lifeline is lost and its children are gone."""
        with contextlib.ExitStack() as resources:
            selector = resources.enter_context(selectors.DefaultSelector())
            listener = resources.enter_context(_listen(self.config.socket))
            selector.register(listener, selectors.EVENT_READ, self._accept)
            wakeup = resources.enter_context(_woken_by_signals())
            selector.register(wakeup, selectors.EVENT_READ, _drain)
            line = lifeline.grasp(self.config.lifeline) if self.config.lifeline else None
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
            self._reap(restart=not orphaned)
            connections = sum(isinstance(key.data, _Connection) for key in selector.get_map().values())
            if self.children or (connections and not orphaned):
                idle_since = time.monotonic()
            if not self.children and (orphaned or time.monotonic() - idle_since > self.config.idle_seconds):
                return

    # --- orders -----------------------------------------------------------------------------------------------

    def _accept(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        selector.register(connection, selectors.EVENT_READ, _Connection(self))

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carries out one order."""
        try:
            order = json.loads(line)
            pod = configuration.build(PodConfig, order["pod"], source="order")
            return {"pid": self.start(pod)}
        except PodraceError as error:
            return {"error": error.message}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"not an order: {error!r}"}
        except OSError as error:
            return {"error": f"cannot start the pod: {error}"}

    def start(self, pod: PodConfig) -> int:
        """Forks the roles of a pod, the head first; a pod that is there already is left as it is. Returns the head's
        pid.
        """
        for child in self.children.values():
            if child.pod.pod_id == pod.pod_id and child.role == LEADER_ROLE:
                return child.pid
        pod.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.started[pod.pod_id] = time.time()
        pids: list[int] = []
        try:
            pids.extend(self._fork(ForkedRole(pod, role, 0)) for role in pod.roles)
            self._write_pod_file(pod)
        except OSError:
            # A pod that is not written down would be nobody's.
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise
        return pids[0]

    def _fork(self, child: ForkedRole) -> int:
        child.pid = os.fork()
        if child.pid == 0:
            # Unwinds the stack of the parent, which closes its sockets here, and goes on in `main`.
            raise BecomeRole(child.pod, child.role)
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
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
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

    def _reap(self, *, restart: bool) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child:
                code = os.waitstatus_to_exitcode(status)
                _log.info("role ended", pod_id=child.pod.pod_id, role=child.role, exit_code=code)
                if child.role == LEADER_ROLE:
                    self._dismiss(child.pod)
                elif restart and code != 0:
                    # A role that ends well was told to: its head is gone or going.
                    self._restart(child)
                self._sweep(child.pod)

    def _dismiss(self, pod: PodConfig) -> None:
        """Ends the roles of a dead head that were not up yet to hold its lifeline."""
        for child in self.children.values():
            if child.pod.pod_id == pod.pod_id:
                os.kill(child.pid, signal.SIGTERM)

    def _sweep(self, pod: PodConfig) -> None:
        """Removes what a pod has left in shared memory, once none of its roles is there to use it."""
        if any(child.pod.pod_id == pod.pod_id for child in self.children.values()):
            return
        with contextlib.suppress(OSError):
            if left := shared.remove_regions(pod.region_prefix, pod.plane_folder):
                _log.warning("swept what a dead pod had left", pod_id=pod.pod_id, files=len(left))

    def _restart(self, child: ForkedRole) -> None:
        head_lives = any(
            other.pod.pod_id == child.pod.pod_id and other.role == LEADER_ROLE for other in self.children.values()
        )
        if not head_lives or child.restarts >= MAXIMUM_RESTARTS:
            return
        child.restarts += 1
        _log.warning("role is restarted", pod_id=child.pod.pod_id, role=child.role, restarts=child.restarts)
        try:
            self._fork(child)
            self._write_pod_file(child.pod)
        except OSError as error:
            # Its head waits for it in vain and ends the pod.
            _log.error("role is not restarted", pod_id=child.pod.pod_id, role=child.role, error=str(error))


class BecomeRole(BaseException):
    """Raised in a forked child to leave the nursery's stack; carries what the child is to be."""

    def __init__(self, pod: PodConfig, role: str) -> None:
        super().__init__(role)
        self.pod, self.role = pod, role


class _Connection:
    """One launcher; keeps what has come of a line that is not complete yet."""

    def __init__(self, nursery: ForkServer) -> None:
        self._fork_server = nursery
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
                connection.sendall(json.dumps(self._fork_server.answer(line)).encode() + b"\n")


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: with the pid and the boot id it names a process for ever. 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def main(config: ForkServerConfig, become: RunRole) -> int:
    """Runs the nursery; in a forked child, the role."""
    # Collected once and then left alone, so that the children share these pages.
    gc.collect()
    gc.freeze()
    try:
        ForkServer(config, become).run()
        return 0
    except BecomeRole as caught:
        child = caught
    # Outside of the handler, without the stack that was left: the role keeps nothing of its parent.
    child.__traceback__ = None
    os._exit(_become(child, become))


def _become(child: BecomeRole, become: RunRole) -> int:
    """What a child does instead of returning into its parent's code; never raises."""
    code = 1
    try:
        _detach(child.pod)
        code = become(child.pod, child.role)
    except PodraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _detach(pod: PodConfig) -> None:
    """A session of its own, its own log file, its own processors."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pod.log_path:
        log = os.open(pod.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    if pod.cpus:
        os.sched_setaffinity(0, pod.cpus)
    if pod.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, pod.gpus))


@contextlib.contextmanager
def _listen(path: Path) -> Iterator[socket.socket]:
    """Listens at `path`.

    Raises:
        InvalidArgument: Another nursery does already.
    """
    probe = _connect(str(path))
    if probe:
        probe.close()
        raise InvalidArgument(f"a nursery listens at {path} already")
    owner = os.getpid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        # Appears under its name only when it listens already; a dead nursery's socket is replaced.
        temporary = path.with_suffix(f".{owner}")
        listener.bind(str(temporary))
        listener.listen()
        temporary.rename(path)
        try:
            yield listener
        finally:
            # A forked child unwinds through here as well.
            if os.getpid() == owner:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable when a child has ended."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    with reader, writer:
        yield reader


def _close_connections(selector: selectors.BaseSelector) -> None:
    """A forked role must not keep its parent's connections open, or their other ends would never see them close."""
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


def _drain(selector: selectors.BaseSelector, wakeup: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        wakeup.recv(4096)
