"""Holds one version of a policy, loaded once and run by every request that it answers."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.checkpoint.v1.policy_pb2 import PolicyDescription, SpaceDescription
from podrace.errors import FailedPrecondition, InvalidArgument
from podrace.policy.graph import ELEMENT_TYPES
from podrace.policy.metadata import MemberFacts
from podrace.policy.runtime import Policy
from podrace.rpc import LARGEST_MESSAGE_BYTES
from podrace.serving.decisions.versions import version_of


class PolicyVersion:
    """A policy, or an ensemble, and what requests need to know about it. Keeps no state of episodes.

    Attributes:
        model: The ONNX file.
        version: Its name, a digest.
        members: Where it comes from.
        state_size: Size S of the recurrent state of one environment; 0: none.
        observation_type: Type of an element of an observation.
        observation_shape: Shape of one observation.
        action_type: Type of an element of an action.
        action_shape: Shape of one action.
        row_bytes: Bytes of one observation.
    """

    def __init__(self, model: bytes, version: str = "", *, threads: int = 1) -> None:
        """Loads an ONNX file that podrace wrote; raises as `Policy`.

        Args:
            model: The file.
            version: Its name; empty: that of its checkpoints.
            threads: Threads that compute.
        """
        self._policy = Policy(model, threads=threads)
        self.model = model
        self.members: Sequence[MemberFacts] = self._policy.members
        self.version = version or version_of([member.manifest_digest for member in self.members])
        self.description: PolicyDescription = self.members[0].description
        self.state_size = self._policy.state_size
        self.observation_type: np.dtype[Any] = ELEMENT_TYPES[self.description.observation_space.data_type]
        self.observation_shape = tuple(self.description.observation_space.shape)
        acted = self.description.action_space
        self.action_type = np.dtype(np.float32 if acted.kind == "continuous" else np.int64)
        self.action_shape = tuple(acted.shape)
        self.row_bytes = prod(self.observation_shape) * self.observation_type.itemsize

    @property
    def samples(self) -> bool:
        """Whether actions can be sampled; an ensemble only acts without exploration."""
        return len(self.members) == 1

    def observations(self, data: bytes) -> NDArray[Any]:
        """Returns the observations [N, *shape] in some bytes: their elements in C order, little-endian.

        Raises:
            InvalidArgument: The bytes are not a whole number of observations, or none.
        """
        if not data or len(data) % self.row_bytes:
            raise InvalidArgument(
                f"observations: {len(data)} bytes are not a number of observations of {self.row_bytes} bytes"
                f" ({self.observation_type.name}, shape {list(self.observation_shape)})"
            )
        return np.frombuffer(data, self.observation_type.newbyteorder("<")).reshape(-1, *self.observation_shape)

    def check_answer(self, rows: int, *, states: bool, most_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
        """Checks that the answer to so many observations fits into a message, which clients accept up to 4 MiB.

        Args:
            rows: Number of observations.
            states: Whether the answer has their recurrent states.
            most_bytes: Largest size of what the answer contains.

        Raises:
            InvalidArgument: It does not.
        """
        row = prod(self.action_shape) * self.action_type.itemsize + 4 * self.state_size * states
        if rows * row > most_bytes:
            raise InvalidArgument(
                f"observations: the answer to {rows} would have {rows * row} bytes, and a message has at most"
                f" {most_bytes}; send at most {most_bytes // row} observations at a time"
            )

    def check_same_spaces(self, other: "PolicyVersion") -> None:
        """Checks that a policy can replace another one.

        Raises:
            FailedPrecondition: They act in different spaces.
        """
        for space in ("observation_space", "action_space"):
            if _rows_of(getattr(self.description, space)) != _rows_of(getattr(other.description, space)):
                raise FailedPrecondition(
                    f"version {self.version[:12]} has another {space.replace('_', ' ')} than {other.version[:12]},"
                    " which serves: serve it with another server"
                )

    def compute(
        self, observation: NDArray[Any], state: NDArray[np.float32], *, outputs: bool
    ) -> dict[str, NDArray[Any]]:
        """Runs the graph; may be called from several threads.

        Args:
            observation: [N, *shape].
            state: [N, S].
            outputs: Whether to return `outputs` of the network as well, which sampling needs.
        """
        names = ["action", *(["next_state"] if self.state_size else []), *(["outputs"] if outputs else [])]
        return self._policy.run(observation, state, names)

    def sampled(self, found: dict[str, NDArray[Any]], random: np.random.Generator) -> NDArray[Any]:
        """Returns sampled actions; raises as `Policy.sampled`."""
        return self._policy.sampled(found, random)


def _rows_of(space: SpaceDescription) -> SpaceDescription:
    """Returns what a space says about the rows that a policy receives, or about actions.

    `choices` of a continuous observation says what the environment makes the rows of, and earlier releases left it out.
    """
    if space.kind != "continuous" or not space.choices:
        return space
    rows = SpaceDescription()
    rows.CopyFrom(space)
    rows.ClearField("choices")
    return rows
