"""`python -m podrace.health ADDRESS`: whether a service says that it serves, by exit code; for container engines.

It runs every few seconds beside each service and imports little: nothing of podrace, and of gRPC the client alone.
"""

import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_SECONDS = 3.0
POLL_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    """Asks with a deadline, and again while there is anything but the answer."""
    if len(arguments) != 1:
        print("usage: python -m podrace.health ADDRESS", file=sys.stderr)
        return 2
    if _serves(arguments[0], DEADLINE_SECONDS):
        return 0
    print(f"error: nothing serves at {arguments[0]} (waited {DEADLINE_SECONDS:g} s)", file=sys.stderr)
    return 1


def _serves(address: str, deadline_seconds: float) -> bool:
    """Whether the server at `address` says SERVING in time; as `podrace.rpc.wait_until_serving`, without a loop."""
    deadline = time.monotonic() + deadline_seconds
    options = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Addresses of this mesh are never behind a web proxy.
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
                    return True
            time.sleep(POLL_SECONDS)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
