"""Runs all roles of a pod as processes of one container: `python -m agentpod pod`.

This is for a container that has all GPUs of a node: its processes map each other's GPU memory and share /dev/shm, which
containers with one GPU each cannot do. The roles are forked, reaped and restarted as the fork server does it for pods
of the process launcher. This process exits with the exit code of the leader.
"""

import gc
import os
import selectors
import signal
import time
from dataclasses import replace

import structlog

from agentpod.config import ForkServerConfig, PodConfig
from agentpod.process.forked_role import BecomeRole, RunRole, run_child
from agentpod.process.forkserver import (
    POLL_SECONDS,
    ForkServer,
    drain,
    woken_by_signals,
)

EXIT_SECONDS = 10.0
"""Time in which the other roles exit after their leader; then the end of the container ends them."""
SIGNALLED = 128
"""Added to the number of the signal that ended the leader, as shells do."""

_log = structlog.get_logger(__name__)


def main(config: PodConfig, run_role: RunRole) -> int:
    """Runs a pod until its leader has exited and returns the leader's exit code.

    In a forked child, runs its role and does not return.
    """
    # The children share the pages of what is frozen.
    gc.collect()
    gc.freeze()
    server = ForkServer(ForkServerConfig(socket=config.folder / "forkserver.sock"))
    try:
        return _supervise(server, config)
    except BecomeRole as caught:
        child = caught
    # Outside the handler and without the parent's stack, so that nothing of the parent stays alive.
    child.__traceback__ = None
    os._exit(run_child(child, lambda pod, role: run_role(with_own_port(pod, role), role)))


def with_own_port(config: PodConfig, role: str) -> PodConfig:
    """Returns the configuration of a role, which serves metrics at the pod's port plus its number among the roles."""
    host, _, port = config.telemetry.metrics_listen.rpartition(":")
    if not port.isdigit() or port == "0":
        return config
    own = f"{host}:{int(port) + config.roles.index(role)}"
    return replace(config, telemetry=replace(config.telemetry, metrics_listen=own))


def _supervise(server: ForkServer, config: PodConfig) -> int:
    """Starts the roles, restarts workers and evaluators that exit, and ends when the leader has exited."""
    with woken_by_signals() as wakeup, selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        leader = server.start(config)
        # Only the leader is asked to stop: it publishes first, and the other roles exit with it.
        signal.signal(signal.SIGTERM, lambda *_: _terminate(leader, server))
        exited_at: float | None = None
        while server.children and (exited_at is None or time.monotonic() - exited_at < EXIT_SECONDS):
            selector.select(POLL_SECONDS)
            drain(selector, wakeup)
            server.reap(restart=exited_at is None)
            if exited_at is None and config.pod_id in server.exit_codes:
                exited_at = time.monotonic()
    code = server.exit_codes.get(config.pod_id, 1)
    _log.info("pod ends", exit_code=code, running=[child.role for child in server.children.values()])
    return code if code >= 0 else SIGNALLED - code


def _terminate(leader: int, server: ForkServer) -> None:
    if leader in server.children:
        os.kill(leader, signal.SIGTERM)
