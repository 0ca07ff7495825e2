"""Runs the role of a process that the fork server has forked: session, log, processors, secrets, user id, limits.

The leader alone reads the secrets of the pod: its token, and the variables with the keys of the checkpoint store. They
come in a file descriptor, because every forked process has the memory of the fork server. Processes with user code get
another user id if the launcher may give them one.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentpod.config import LEADER_ROLE, PodConfig
from agentpod.liveness import stacks
from podrace.errors import PodraceError
from podrace.limits.user_environment import TOKEN_PREFIXES, leader_variables
from podrace.ownership import make_own_folder, make_private_folder, share
from podrace.printable import printable
from podrace.processes import user_ids

RunRole = Callable[[PodConfig, str], int]
"""Runs a role of a pod and returns its exit code."""
NO_SECRETS = -1
"""In place of a descriptor: there are no secrets."""
LEAST_MEMORY_BYTES = 1 << 30
"""User code may always allocate this much in addition to what the fork server has."""


class BecomeRole(BaseException):
    """Raised in a forked child to leave the stack of the fork server; carries the role that the child runs."""

    def __init__(self, pod: PodConfig, role: str, secrets: int = NO_SECRETS) -> None:
        super().__init__(role)
        self.pod, self.role, self.secrets = pod, role, secrets


def make_code_folder(pod: PodConfig) -> None:
    """Creates the folder that processes with user code may enter, and below it their own; nothing if they need none.

    Raises:
        FailedPrecondition: The folder above them belongs to another user, or others can write to it.
        OSError: A folder cannot be created.
    """
    shared, code = pod.shared_folder, pod.code_folder
    if shared is None:
        return
    make_own_folder(shared.parent, "set TMPDIR to another folder", mode=0o711)
    shared.mkdir(mode=0o700)
    share(shared, pod.user_code_uid, 0o750)
    make_private_folder(code, "set TMPDIR to another folder")
    os.chown(code, pod.user_code_uid, pod.user_code_uid)


def run_child(child: BecomeRole, run_role: RunRole) -> int:
    """Runs the role of a forked child and returns its exit code; never raises."""
    code = 1
    try:
        _detach(child.pod)
        pod = prepare(child)
        code = run_role(pod, child.role)
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


def prepare(child: BecomeRole) -> PodConfig:
    """Gives the leader its secrets, and takes variables and rights from the other roles; returns the configuration."""
    pod = child.pod
    if child.role == LEADER_ROLE:
        secrets = _read(child.secrets)
        os.environ.update(secrets.get("variables", {}))
        return replace(pod, token=secrets.get("token") or pod.token)
    close_secrets(child.secrets)
    tokens = [name for name in os.environ if name.startswith(TOKEN_PREFIXES)]
    for name in (*leader_variables(os.environ, pod.allow), *tokens):
        del os.environ[name]
    if pod.runs_user_code(child.role):
        _confine(pod, child.role)
    return pod


def _confine(pod: PodConfig, role: str) -> None:
    # A process of a GPU reserves far more memory than it uses.
    memory_bytes = 0 if pod.gpus or not pod.memory_bytes else max(pod.memory_bytes, LEAST_MEMORY_BYTES)
    user_ids.limit(memory_bytes, processes=bool(pod.user_code_uid))
    if pod.user_code_uid:
        # Opened by this user: the other one cannot enter the folder, and must not choose what the leader reads.
        stacks.dump_on_signal(pod.folder, role)
        user_ids.become(pod.user_code_uid, pod.code_folder)


def close_secrets(descriptor: int) -> None:
    """Closes the descriptor with the secrets of the leader, if there is one."""
    if descriptor != NO_SECRETS:
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    """Reads and closes the descriptor with the secrets of the leader."""
    if descriptor == NO_SECRETS:
        return {}
    try:
        content: dict[str, Any] = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        return content
    finally:
        os.close(descriptor)
