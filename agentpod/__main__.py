"""`python -m agentpod ROLE`: learner, worker-N, evaluator (containers), nursery (the process launcher's parent of all),
evaluation-function (what the head of a pod starts for a tournament's own evaluator), or retrain (trains an agent again
and tells what came of it: `podrace lineage AGENT --retrain`).
"""

import os
import socket
import sys
from dataclasses import replace

from agentpod.config import ForkServerConfig, FunctionConfig, PodConfig, RetrainConfig
from podrace import telemetry
from podrace.config import config_from_arguments
from podrace.errors import InvalidArgument, PodraceError
from podrace.processes import group_reaper
from podrace.telemetry import TelemetryConfig


def main(arguments: list[str]) -> int:
    """Runs one process of a pod; the exit code is the process'."""
    try:
        if not arguments:
            raise InvalidArgument("which role? python -m agentpod learner | worker-<n> | evaluator | forkserver")
        role, *rest = arguments
        if role == "forkserver":
            fork_server_config = config_from_arguments(ForkServerConfig, rest, program="agentpod-forkserver")
            telemetry.configure_logging(TelemetryConfig())
            # Here torch is imported: after the configuration was read, before the first fork.
            from agentpod.process import forkserver, wiring

            wiring.preload()
            return forkserver.main(fork_server_config, wiring.run_role)
        if role == "evaluation-function":
            function_config = config_from_arguments(FunctionConfig, rest, program="agentpod-function")
            # Before torch is imported: it is a copy of this process.
            group_reaper.sweep_after_this_process()
            from agentpod.roles import evaluation_function

            # As below: a user's function may hang for ever.
            os._exit(evaluation_function.run(function_config))
        if role == "retrain":
            retrain_config = config_from_arguments(RetrainConfig, rest, program="agentpod-retrain")
            from agentpod.process import retraining

            return retraining.run(retrain_config)
        config = config_from_arguments(PodConfig, rest, program="agentpod")
        config = replace(config, pod_id=config.pod_id or socket.gethostname())
        from agentpod.process import wiring

        for folder in (config.folder, config.plane_folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not by returning: the interpreter would wait for a simulator that hangs on the compute thread.
        code = wiring.run_role(config, role)
        sys.stderr.flush()
        os._exit(code)
    except PodraceError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
