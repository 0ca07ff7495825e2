"""Acts with a policy that `podrace serve` serves: reads an observation from each line, and prints the action for it.

    echo '[0.1, 0.0, -0.02, 0.0]' | python policy_client.py 127.0.0.1:8001 [TOKEN]

Needs grpcio and the Python distribution of `make contracts`, nothing else. A line is a JSON array of the numbers of one
observation, nested or not; an empty line begins an episode. Of a Dict observation it is the row of all its entries. The
lines of an episode form a session, in which the server keeps the state of a recurrent policy.
"""

import array
import itertools
import json
import math
import sys
import uuid
from collections.abc import Iterable, Iterator

import grpc

from podrace.policy.v1 import policy_service_pb2 as pb
from podrace.policy.v1.policy_service_pb2_grpc import PolicyServiceStub
from podrace.tensor.v1 import tensor_pb2

SECONDS = 5.0


class PolicyClient:
    """A client of PolicyService, for one environment.

    Elements are little-endian, as on this machine and most others.
    """

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        """Reads the spaces of the policy; waits up to 5 s for the server."""
        self._stub = PolicyServiceStub(channel)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        answer = self._stub.DescribePolicy(pb.DescribePolicyRequest(), wait_for_ready=True, **self._call())
        self.version = answer.policy.version
        # The spaces of all members of an ensemble are the same.
        description = answer.policy.members[0].policies["agent"]
        observed, acted = description.observation_space, description.action_space
        self._is_bytes = observed.data_type == tensor_pb2.DATA_TYPE_UINT8
        self._elements = math.prod(observed.shape)
        self._action_shape = list(acted.shape)
        self._is_continuous = acted.kind == "continuous"
        self._session, self._begins = uuid.uuid4().hex, True

    def _call(self) -> dict[str, object]:
        return {"timeout": SECONDS, "metadata": self._metadata}

    def begin(self) -> None:
        """Begins an episode with the next observation."""
        self._begins = True

    def act(self, observation: object) -> object:
        """Returns the greedy action: a number, or a list of the numbers of its elements in C order.

        Raises:
            ValueError: The observation does not have the elements of the space.
            grpc.RpcError: The server refused the request, or did not answer within 5 s.
        """
        numbers = list(flat(observation))
        if len(numbers) != self._elements:
            raise ValueError(f"an observation of {len(numbers)} numbers: the policy expects {self._elements}")
        row = bytes(map(int, numbers)) if self._is_bytes else array.array("f", numbers).tobytes()
        request = pb.ActRequest(observations=row, session_id=self._session, begin=self._begins)
        answer = self._stub.Act(request, **self._call())
        self._begins = False
        actions = array.array("f" if self._is_continuous else "q", answer.actions).tolist()
        return actions if self._action_shape else actions[0]

    def close(self) -> None:
        """Ends the session."""
        self._stub.EndSession(pb.EndSessionRequest(session_id=self._session), **self._call())


def flat(nested: object) -> Iterator[float]:
    """Yields the numbers of nested lists in C order."""
    if isinstance(nested, list):
        yield from itertools.chain.from_iterable(map(flat, nested))
    else:
        yield float(nested)  # type: ignore[arg-type]


def play(client: PolicyClient, lines: Iterable[str]) -> None:
    """Prints an action for each line that has an observation."""
    for line in lines:
        if line.strip():
            print(json.dumps(client.act(json.loads(line))), flush=True)
        else:
            client.begin()


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit status."""
    if len(arguments) not in (1, 2):
        print("usage: policy_client.py ADDRESS [TOKEN]", file=sys.stderr)
        return 2
    try:
        with grpc.insecure_channel(arguments[0]) as channel:
            client = PolicyClient(channel, *arguments[1:])
            print(f"acting with version {client.version}", file=sys.stderr)
            play(client, sys.stdin)
            client.close()
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    except (TypeError, ValueError) as error:
        print(f"policy_client.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
