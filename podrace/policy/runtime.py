"""Acts with an exported policy on observations of Gymnasium environments, by ONNX Runtime."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from podrace.checkpoint.v1.policy_pb2 import SpaceDescription
from podrace.errors import DataLoss, InvalidArgument, Unimplemented
from podrace.policy.entry_graph import MASKED, entries_of, sizes
from podrace.policy.graph import ELEMENT_TYPES
from podrace.policy.metadata import MemberFacts, members_in
from podrace.policy.observations import as_numbers, as_rows, check_finite
from podrace.spaces.entries import EntryError, flattened, leading

MINIMUM_LOG_STD, MAXIMUM_LOG_STD = -20.0, 2.0
ACTION_TOLERANCE = 1e-5
"""Largest difference of a continuous action from its test vector, relative to the range of the action."""
LOGIT_TOLERANCE = 1e-4
"""Discrete actions are compared where the two largest outputs differ by more than this."""


class Policy:
    """Acts with a policy, or with an ensemble, and keeps its recurrent state.

    One environment:

        policy = podrace.load_policy("policy.onnx")
        observation, _ = environment.reset(seed=1)
        policy.reset()
        while True:
            observation, reward, terminated, truncated, _ = environment.step(policy.act(observation))
            if terminated or truncated:
                observation, _ = environment.reset()
                policy.reset()

    With a vector environment, `observation` has one more dimension, actions have it too, and `reset(lanes)` takes which
    lanes begin an episode. An object is for one thread.

    Attributes:
        members: Where the policies come from, and how they act; one, unless it is an ensemble.
        state_size: Size of the recurrent state of one lane; 0: none.
    """

    def __init__(self, model: bytes, *, threads: int = 1) -> None:
        """Loads an ONNX file that podrace wrote.

        Args:
            model: Its bytes.
            threads: Threads that compute.

        Raises:
            Unimplemented: ONNX Runtime is not installed.
            DataLoss: The bytes are not such a file.
        """
        runtime = _onnx_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        try:
            self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the classes of ONNX Runtime share no base
            raise DataLoss(f"{len(model)} bytes are not a usable ONNX file: {error}") from None
        self._names = [output.name for output in self._session.get_outputs()]
        self.members: list[MemberFacts] = members_in(self._session.get_modelmeta().custom_metadata_map)
        description = self.members[0].description
        self._observed, self._acted = description.observation_space, description.action_space
        self._type: np.dtype[Any] = ELEMENT_TYPES[self._observed.data_type]
        self._shape, self._entries = tuple(self._observed.shape), entries_of(self._observed)
        self.state_size = sum(member.description.recurrent_size for member in self.members)
        self._state = np.zeros((1, self.state_size), np.float32)

    def reset(self, lanes: NDArray[np.bool_] | None = None) -> None:
        """Begins an episode: in every lane, or in those that are true in `lanes` [N]."""
        if lanes is None:
            self._state = np.zeros((1, self.state_size), np.float32)
        elif len(lanes) == len(self._state):
            self._state[np.asarray(lanes, np.bool_)] = 0.0

    def act(self, observation: Any, random: np.random.Generator | None = None) -> Any:
        """Returns the action of an observation, or the actions of a batch.

        Args:
            observation: [*shape] of one environment, or [N, *shape]. A composite observation is what the environment
                returns, a mapping or a tuple, with arrays that have one more dimension in front for N environments; or
                its rows [D] or [N, D]. An observation that is one of several choices is a whole number, or an array of
                N of them; or its one-hot rows.
            random: Samples the action by it; None: the action without exploration. An ensemble does not sample.

        Returns:
            For one environment an int, or an array of the shape of the action space; for N lanes an array of N of them.

        Raises:
            InvalidArgument: The observation has another shape, or a number that is not finite, or the number of lanes
                changed within an episode.
        """
        batch = self._rows(observation)
        single = batch.shape == self._shape
        if single:
            batch = batch[np.newaxis]
        if batch.shape[1:] != self._shape:
            raise InvalidArgument(
                f"an observation of shape {list(batch.shape)}: expected {list(self._shape)}, or one more dimension in"
                " front for several environments"
            )
        check_finite("observation", batch)
        action = self._advance(batch, random)
        if not single:
            return action
        return int(action[0]) if self._acted.kind == "discrete" else action[0]

    def _rows(self, observation: Any) -> NDArray[Any]:
        """Returns an observation [*shape], or the observations [N, *shape] of a batch, as the policy receives them."""
        if not self._entries:
            return as_rows(observation, int(self._observed.choices), self._type)
        if isinstance(observation, np.ndarray):
            return as_numbers(observation, self._type)
        try:
            return flattened(self._entries, observation, leading(self._entries, observation)).astype(self._type)
        except EntryError as error:
            raise InvalidArgument(f"an observation whose {error}") from None

    def _advance(self, batch: NDArray[Any], random: np.random.Generator | None) -> NDArray[Any]:
        if self.state_size and len(batch) != len(self._state):
            if self._state.any():
                raise InvalidArgument(
                    f"{len(batch)} observations after {len(self._state)}: call reset() before the number of lanes"
                    " changes"
                )
            self._state = np.zeros((len(batch), self.state_size), np.float32)
        found = self.run(batch, self._state)
        if self.state_size:
            self._state = found["next_state"]
        return found["action"] if random is None else self.sampled(found, random)

    def run(
        self, observation: NDArray[Any], state: NDArray[Any], names: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Returns outputs of the graph by name, and keeps nothing.

        Args:
            observation: [N, *shape].
            state: [N, S].
            names: Outputs to return; None: all.
        """
        names = self._names if names is None else names
        inputs = {"observation": observation} | ({"state": state} if self.state_size else {})
        return dict(zip(names, self._session.run(names, inputs), strict=True))

    def sampled(self, found: Mapping[str, NDArray[Any]], random: np.random.Generator) -> NDArray[Any]:
        """Returns sampled actions [N, ...] for what `run` returned.

        Raises:
            InvalidArgument: The policy is an ensemble, which does not sample.
        """
        if len(self.members) > 1:
            raise InvalidArgument("an ensemble acts without exploration: call act without `random`")
        description, parameters = self.members[0].description, self.members[0].head_parameters
        outputs, head = found["outputs"], description.head
        if head in ("values", "dueling"):
            explores = random.random(len(outputs)) < parameters["exploration"][0]
            # A random order of the choices, of which the first valid one is taken.
            order = random.random((len(outputs), int(self._acted.choices)))
            drawn = np.where(outputs[:, int(head == "dueling") :] > MASKED, order, order - 1.0).argmax(1)
            return np.where(explores, drawn, found["action"])
        if self._acted.kind == "multi_binary":
            flags = outputs + random.logistic(size=outputs.shape) > 0
            return flags.astype(np.int64).reshape(found["action"].shape)
        if self._acted.kind != "continuous":
            # Gumbel-max: a draw from the softmax of the logits of each element.
            noisy = outputs + random.gumbel(size=outputs.shape)
            parts = np.split(noisy, np.cumsum(sizes(self._acted))[:-1], 1)
            return np.stack([part.argmax(1) for part in parts], 1).reshape(found["action"].shape)
        return self._scaled(_sampled_action(head, outputs, parameters, random))

    def _scaled(self, action: NDArray[Any]) -> NDArray[Any]:
        scaling = self.members[0].description.action_scaling
        low, high, scale, offset = (
            np.array(values, np.float32) for values in (scaling.minimum, scaling.maximum, scaling.scale, scaling.offset)
        )
        scaled: NDArray[Any] = (np.clip(action, low, high) * scale + offset).astype(np.float32)
        return scaled.reshape(len(action), *self._acted.shape)

    def check(self, vectors: Mapping[str, NDArray[Any]]) -> None:
        """Compares the policy with the test vectors of its checkpoint; an ensemble has none.

        Raises:
            DataLoss: An action differs by more than the contract allows.
        """
        rows = len(vectors["observation"])
        state = vectors.get("state", np.zeros((rows, 0), np.float32))
        found = self.run(vectors["observation"], state)
        worst = difference(self.members[0], found["action"], vectors["action"], vectors["outputs"])
        if worst > ACTION_TOLERANCE:
            raise DataLoss(
                f"checkpoint {self.members[0].manifest_digest[:12]}: the policy does not act as its test vectors say"
                f" (difference {worst:.2g}, at most {ACTION_TOLERANCE:g})"
            )


def difference(member: MemberFacts, action: NDArray[Any], wanted: NDArray[Any], outputs: NDArray[Any] | None) -> float:
    """Returns the largest difference between actions: relative to their range, or the share of other choices.

    Args:
        member: Whose actions they are.
        action: [N, ...], the actions to check.
        wanted: [N, ...], the right ones.
        outputs: [N, O], outputs of the network that the right actions follow from; where the two best of them differ by
            less than LOGIT_TOLERANCE, discrete actions are not compared. None: all are compared.
    """
    space = member.description.action_space
    if space.kind == "continuous":
        scale = np.array(member.description.action_scaling.scale, np.float64)
        gaps = np.abs(action.astype(np.float64) - wanted).reshape(len(wanted), -1) / (2.0 * np.abs(scale) + 1e-30)
        return float(gaps.max(initial=0.0))
    rows = (len(wanted), -1)
    clear = np.ones((len(wanted), max(1, prod(space.shape))), np.bool_)
    if outputs is not None:
        clear = clear_choices(space, outputs[:, 1:] if member.description.head == "dueling" else outputs)
    return float((action != wanted).reshape(rows)[clear].mean()) if clear.any() else 0.0


def clear_choices(space: SpaceDescription, outputs: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns for which elements of an action [N, elements] the outputs [N, O] leave no doubt about the choice."""
    if space.kind == "multi_binary":
        far: NDArray[np.bool_] = np.abs(outputs) > LOGIT_TOLERANCE
        return far
    found = []
    for values in np.split(outputs, np.cumsum(sizes(space))[:-1], 1):
        best = np.sort(values, 1)
        found.append(best[:, -1] - best[:, -2] > LOGIT_TOLERANCE if values.shape[1] > 1 else best[:, 0] == best[:, 0])
    return np.stack(found, 1)


def _sampled_action(
    head: str, outputs: NDArray[Any], parameters: Mapping[str, Any], random: np.random.Generator
) -> NDArray[Any]:
    if head == "squashed":
        mean, log_std = np.split(outputs, 2, 1)
        spread = np.exp(np.clip(log_std, MINIMUM_LOG_STD, MAXIMUM_LOG_STD))
        squashed: NDArray[Any] = np.tanh(mean + spread * random.standard_normal(mean.shape))
        return squashed
    if head == "deterministic":
        noise = parameters["exploration"][0] * random.standard_normal(outputs.shape)
        explored: NDArray[Any] = np.clip(np.tanh(outputs) + noise, -1.0, 1.0)
        return explored
    sampled: NDArray[Any] = outputs + np.exp(parameters["log_std"]) * random.standard_normal(outputs.shape)
    return sampled


def _onnx_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise Unimplemented(
            "acting with a policy needs the package onnxruntime: pip install 'onnxruntime>=1.22' (podrace[policy])"
        ) from None
    return onnxruntime
