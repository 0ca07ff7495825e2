"""Runs one process of a pod: `python -m agentpod ROLE`.

- `learner`, `learner-N`, `worker-N`, `evaluator`: a role of a pod; containers run these.
- `pod`: all roles of a pod, as processes of one container.
- `forkserver`: forks the roles of pods for the process launcher.
- `evaluation-function`: runs a user's evaluation function for the leader of a pod.
- `retrain`: trains an agent again and prints the result, for `podrace lineage AGENT --retrain`.
- `inspect`: makes the environments and algorithms of a specification once, and prints what is wrong with it.
- `declare`: prints the hyperparameters of user-defined algorithms.
- `qualify`: examines the GPUs of this machine or container, as `podrace qualify` does.
- `qualify-part`: runs one part of that, and prints what it found as lines of JSON.
"""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

from agentpod.config import ForkServerConfig, FunctionConfig, InspectConfig, PodConfig, RetrainConfig
from podrace import telemetry
from podrace.config import config_from_arguments
from podrace.errors import InvalidArgument, PodraceError
from podrace.ownership import make_private_folder
from podrace.printable import printable
from podrace.processes import container_init, group_reaper
from podrace.telemetry import TelemetryConfig


def main(arguments: list[str]) -> int:
    """Runs one process of a pod and returns its exit code."""
    try:
        if not arguments:
            raise InvalidArgument(
                "a role is missing: python -m agentpod learner | learner-<n> | worker-<n> | evaluator | pod |"
                " forkserver"
            )
        role, *rest = arguments
        command = COMMANDS.get(role)
        return command(rest) if command else _run_role(role, rest)
    except PodraceError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        return 2


def _run_fork_server(arguments: list[str]) -> int:
    config = config_from_arguments(ForkServerConfig, arguments, program="agentpod-forkserver")
    telemetry.configure_logging(TelemetryConfig())
    # This imports torch: after the configuration was read, and before the first fork.
    from agentpod.process import forkserver, wiring

    wiring.preload()
    return forkserver.main(config, wiring.run_role)


def _run_evaluation_function(arguments: list[str]) -> int:
    config = config_from_arguments(FunctionConfig, arguments, program="agentpod-function")
    # Before torch is imported, because the reaper is a copy of this process.
    group_reaper.reap_group_after_this_process()
    from agentpod.roles import evaluation_function

    # Without waiting for threads: a user's function may hang forever.
    os._exit(evaluation_function.run(config))


def _retrain(arguments: list[str]) -> int:
    config = config_from_arguments(RetrainConfig, arguments, program="agentpod-retrain")
    from agentpod.process import retraining

    return retraining.run(config)


def _inspect(arguments: list[str]) -> int:
    config = config_from_arguments(InspectConfig, arguments, program="agentpod-inspect")
    # Before torch is imported, because the reaper is a copy of this process.
    group_reaper.reap_group_after_this_process()
    from agentpod.process import inspection

    code = inspection.run(config)
    sys.stderr.flush()
    # Without waiting for threads: a user's simulator may hang forever.
    os._exit(code)


def _declare(arguments: list[str]) -> int:
    from agentpod.process import declaring

    code = declaring.run()
    sys.stderr.flush()
    # Without waiting for threads that a user's module started.
    os._exit(code)


def _qualify(arguments: list[str]) -> int:
    from agentpod.qualification import program
    from agentpod.qualification.config import QualifyConfig

    return program.main(config_from_arguments(QualifyConfig, arguments, program="agentpod-qualify"))


def _qualify_part(arguments: list[str]) -> int:
    from agentpod.qualification.config import QualificationConfig

    config = config_from_arguments(QualificationConfig, arguments, program="agentpod-qualify-part")
    telemetry.configure_logging(TelemetryConfig())
    # This imports torch, so the GPUs are bound first.
    from agentpod.qualification import part_process

    return part_process.main(config)


def _run_role(role: str, arguments: list[str]) -> int:
    config = config_from_arguments(PodConfig, arguments, program="agentpod")
    config = replace(config, pod_id=config.pod_id or socket.gethostname())
    _forget_secrets()
    from agentpod.process import wiring

    _make_folders(config)
    code = wiring.run_role(config, role, forked=False)
    sys.stderr.flush()
    # Without waiting for threads: a simulator may hang on the compute thread forever.
    os._exit(code)


def _make_folders(config: PodConfig) -> None:
    """Creates the folders of a pod.

    Raises:
        FailedPrecondition: The folder of its sockets and lifelines belongs to another user, or others can enter it.
    """
    make_private_folder(config.folder, "choose another folder", key="folder")
    # Usually /dev/shm, where every user may create files: each file is checked instead.
    config.plane_folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _forget_secrets() -> None:
    """Removes secrets from the environment, which child processes with code of users inherit."""
    for name in ("PODRACE_AGENTPOD__TOKEN", "PODRACE_AGENTPOD__KEY"):
        os.environ.pop(name, None)


def _run_pod(arguments: list[str]) -> int:
    config = config_from_arguments(PodConfig, arguments, program="agentpod")
    config = replace(config, pod_id=config.pod_id or socket.gethostname())
    _forget_secrets()
    telemetry.configure_logging(config.telemetry)
    # This imports torch: after the configuration was read, and before the first fork.
    from agentpod.process import one_container, wiring

    wiring.preload()
    _make_folders(config)
    return one_container.main(config, wiring.run_role)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "forkserver": _run_fork_server,
    "pod": _run_pod,
    "evaluation-function": _run_evaluation_function,
    "retrain": _retrain,
    "inspect": _inspect,
    "declare": _declare,
    "qualify": _qualify,
    "qualify-part": _qualify_part,
}
"""Processes that are not a single role of a pod."""

if __name__ == "__main__":
    container_init.run_below_process_1()
    sys.exit(main(sys.argv[1:]))
