"""Checks the health of a service for a container engine: `python -m podrace.health ADDRESS`.

The exit code is 0 if the service reports SERVING. Container engines run this program every few seconds, so it imports
only the gRPC client and nothing else of podrace.
"""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_SECONDS = 3.0
POLL_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    """Polls the health service until it reports SERVING or the deadline has passed."""
    if len(arguments) != 1:
        print("usage: python -m podrace.health ADDRESS", file=sys.stderr)
        return 2
    problem = _problem(arguments[0], DEADLINE_SECONDS)
    if not problem:
        return 0
    print(f"error: {problem} (waited {DEADLINE_SECONDS:g} s)", file=sys.stderr)
    return 1


def _problem(address: str, deadline_seconds: float) -> str:
    """Returns why the server does not report SERVING in time; empty if it does.

    Like `podrace.rpc.wait_until_serving`, but without asyncio.
    """
    problem = f"nothing answers at {address}"
    deadline = time.monotonic() + deadline_seconds
    options = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Services are never reached through a web proxy.
        ("grpc.enable_http_proxy", 0),
    ]
    with grpc.insecure_channel(address, options=options) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        while (left_seconds := deadline - time.monotonic()) > 0:
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=left_seconds, wait_for_ready=True)
            except grpc.RpcError:
                pass
            else:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return ""
                problem = f"the service at {address} runs and is not ready: its log says what it waits for"
            time.sleep(POLL_SECONDS)
    return problem


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
