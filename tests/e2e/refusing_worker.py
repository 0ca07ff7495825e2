"""A worker of a third party that opens sessions and refuses every rollout: python refusing_worker.py 127.0.0.1:0."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "custom"))
from worker_service import CartPoleWorker

from podrace.agentpod.v1 import agentpod_pb2_grpc as pb_grpc


class RefusingWorker(CartPoleWorker):
    """Has a full disk."""

    def CollectRollout(self, request: Any, context: Any) -> Any:
        """Refuses."""
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the disk is full")


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    pb_grpc.add_WorkerServiceServicer_to_server(RefusingWorker(), server)
    print(server.add_insecure_port(sys.argv[1]), flush=True)
    server.start()
    server.wait_for_termination()
