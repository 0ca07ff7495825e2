"""Describes policies in manifests, rebuilds them from a description, and computes their test vectors.

    manifest = Manifest(policies=describe_all(policy))
    parts[TEST_VECTORS_PART] = encode(test_vectors(policy), {})
    policy = policy_of(manifest.policies[AGENT])

podrace.checkpoint.v1.PolicyDescription is the contract.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from agentpod.models.policy import NetworkSpec, Policy
from podrace.agentpod.v1 import agentpod_pb2
from podrace.checkpoint.v1.policy_pb2 import ActionScaling, PolicyDescription, SpaceDescription
from podrace.errors import InvalidArgument
from podrace.spaces.entries import BYTES, FLAGS, MASK, ONE_HOT, columns
from simulators.base import Space
from simulators.messages import KINDS, space_message, space_of

STEPS_VERSION = 1
AGENT = "agent"
"""Name of the only agent of an environment with one agent, and of agents that share one policy."""
POLICY_PART, TEST_VECTORS_PART = "policy", "test_vectors"
MOST_ROWS = 8
MOST_OBSERVATION_BYTES = 2**16
"""Observations of test vectors take at most this much, but there is at least one row."""
LARGE_INPUT = 20.0
"""Standard deviations of the observation in the first row, so that normalized inputs are clipped."""


def describe_all(policy: Policy) -> dict[str, PolicyDescription]:
    """Describes the policies of a checkpoint with test vectors: one, or that of each agent by its name."""
    if not policy.agents:
        return {AGENT: describe(policy)}
    found = {}
    for index, (name, own) in enumerate(policies_of_agents(policy).items()):
        found[name] = describe(own)
        found[name].agent_index = index
    return found


def policies_of_agents(policy: Policy) -> dict[str, Policy]:
    """Copies the policy of each agent, by its name; agents with shared parameters have one policy, AGENT."""
    if not policy.agents:
        return {AGENT: policy}
    space = replace(policy.observation_space, agents=())
    network, found = replace(policy.network, share_parameters=True), {}
    names = policy.observation_space.agents or (AGENT,)
    for index, name in enumerate(names):
        found[name] = Policy(space, policy.action_space, network, device=policy.flat.device)
        found[name].load(torch.cat([tensor[index].flatten() for tensor in policy.tensors().values()]))
    return found


def described_network(policies: Mapping[str, PolicyDescription]) -> NetworkSpec:
    """Returns the structure of the policies of a checkpoint; raises as `network_of`."""
    first = next(iter(policies.values()))
    network = network_of(first)
    return replace(network, share_parameters=False) if first.HasField("agent_index") else network


def describe(policy: Policy) -> PolicyDescription:
    """Describes one policy, whose agents share their parameters, in a checkpoint with test vectors."""
    network = policy.network
    return PolicyDescription(
        steps_version=STEPS_VERSION,
        observation_space=space_description(policy.observation_space),
        action_space=space_description(policy.action_space),
        normalization=_normalization(policy),
        torso=network.torso,
        hidden_sizes=network.hidden_sizes,
        activation=network.activation,
        recurrent_size=network.recurrent_size,
        head=network.head,
        action_scaling=_scaling(policy),
        part=POLICY_PART,
        test_vectors_part=TEST_VECTORS_PART,
        network_class=network.network_class,
        network_options=dict(network.network_options),
    )


def _normalization(policy: Policy) -> str:
    if policy.observation_space.dtype == torch.uint8 and not policy.observation_space.entries:
        return "bytes"
    return "statistics" if policy.normalizes else "none"


def _scaling(policy: Policy) -> ActionScaling | None:
    bounds = policy.action_bounds
    if bounds is None:
        return None
    return ActionScaling(
        minimum=_shared(bounds.minimum),
        maximum=_shared(bounds.maximum),
        scale=_shared(bounds.scale),
        offset=_shared(bounds.offset),
    )


def _shared(numbers: Tensor) -> list[float]:
    """Returns one number if all are equal."""
    values: list[float] = numbers.tolist()
    return values[:1] if values.count(values[0]) == len(values) else values


def space_description(space: Space) -> SpaceDescription:
    """Translates a space to the message of manifests."""
    message = space_message(space)
    return SpaceDescription(
        kind=space.kind,
        shape=message.shape,
        data_type=message.data_type,
        low=message.low,
        high=message.high,
        choices=message.choices,
        element_choices=message.element_choices,
        entries=message.entries,
    )


def described_space(message: SpaceDescription) -> Space:
    """Translates the message of a manifest to a space.

    Raises:
        InvalidArgument: Its kind or type is unknown, or the number of bounds does not match the elements.
    """
    if message.kind not in KINDS:
        raise InvalidArgument(f"a space of kind {message.kind[:64]!r}: this build knows {', '.join(KINDS)}")
    return space_of(
        agentpod_pb2.Space(
            kind=KINDS[message.kind],
            shape=message.shape,
            data_type=message.data_type,
            low=message.low,
            high=message.high,
            choices=message.choices,
            element_choices=message.element_choices,
            entries=message.entries,
        )
    )


def network_of(description: PolicyDescription) -> NetworkSpec:
    """Returns the structure of a policy. The class that the description may name is not imported.

    Raises:
        InvalidArgument: The description has steps or a network that this build does not know.
    """
    if description.steps_version != STEPS_VERSION:
        raise InvalidArgument(
            f"a policy with version {description.steps_version} of the steps: this build knows {STEPS_VERSION};"
            " update podrace"
        )
    return NetworkSpec(
        hidden_sizes=tuple(description.hidden_sizes),
        activation=description.activation,
        normalize_observations=description.normalization == "statistics",
        head=description.head,
        torso=description.torso,
        recurrent_size=description.recurrent_size,
        network_class=description.network_class,
        network_options=tuple(sorted(description.network_options.items())),
    )


def policy_of(description: PolicyDescription) -> Policy:
    """Builds a policy from its description; its tensors are 0 until they are loaded.

    Imports the class that the description names (`network_class`). Check before that the specification names it.

    Raises:
        InvalidArgument: The description has steps, spaces or a network that this build does not know.
    """
    network = network_of(description)
    spaces = described_space(description.observation_space), described_space(description.action_space)
    return Policy(*spaces, network)


def test_vectors(policy: Policy) -> dict[str, Tensor]:
    """Computes inputs and outputs of a policy by which an implementation can check itself, in float32 on the CPU.

    If agents have separate parameters, every tensor has a leading [A].
    """
    if policy.agents:
        each = [test_vectors(own) for own in policies_of_agents(policy).values()]
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}
    own = Policy(policy.observation_space, policy.action_space, policy.network)
    own.load(policy.flat.cpu())
    space, generator = own.observation_space, torch.Generator().manual_seed(0)
    row_bytes = max(1, math.prod(space.shape)) * space.dtype.itemsize
    rows = max(1, min(MOST_ROWS, MOST_OBSERVATION_BYTES // row_bytes))
    observation = random_observations(own, rows, generator)
    state = torch.rand(rows, own.state_size, generator=generator) * 2.0 - 1.0
    state[::2] = 0.0
    with torch.no_grad():
        outputs, following = own.advance(observation, state)
        action = own.to_environment(own.head.mode(outputs))
    found = {"observation": observation, "outputs": outputs, "action": action}
    return found | ({"state": state, "next_state": following} if own.state_size else {})


def random_observations(policy: Policy, count: int, generator: torch.Generator) -> Tensor:
    """Draws observations [count, *shape] that look like those of the environment, as far as a policy knows them."""
    space = policy.observation_space
    if space.entries:
        return _random_rows(policy, count, generator)
    if space.dtype == torch.uint8:
        return torch.randint(0, 256, (count, *space.shape), dtype=torch.uint8, generator=generator)
    return _random_vectors(policy, count, generator).view(count, *space.shape).to(space.dtype)


def _random_vectors(policy: Policy, count: int, generator: torch.Generator) -> Tensor:
    """Draws normal numbers [count, D], with the statistics of the policy if it has any."""
    noise = torch.randn(count, math.prod(policy.observation_space.shape), generator=generator)
    if policy.normalizes:
        noise[0] *= LARGE_INPUT
        tensors = policy.tensors()
        noise = tensors["observation_mean"].cpu() + tensors["observation_variance"].cpu().sqrt() * noise
    return noise


def _random_rows(policy: Policy, count: int, generator: torch.Generator) -> Tensor:
    """Draws rows of a composite observation: every entry by its encoding, and masks with a valid choice."""
    space, actions = policy.observation_space, policy.action_space
    rows = _random_vectors(policy, count, generator)
    for entry, place in columns(space.entries):
        drawn = torch.rand(count, entry.size, generator=generator)
        if entry.encoding == BYTES:
            rows[:, place] = (drawn * 256.0).floor()
        elif entry.encoding == FLAGS or (entry.encoding == MASK and actions.kind == "multi_binary"):
            rows[:, place] = drawn.round()
        elif entry.encoding in (ONE_HOT, MASK):
            groups = entry.choices or actions.choices or (actions.n,)
            chosen = [one_hot(part.argmax(1), part.shape[1]) for part in drawn.split_with_sizes(groups, 1)]
            ones = torch.cat(chosen, 1)
            rows[:, place] = torch.maximum(ones, drawn.round()) if entry.encoding == MASK else ones.float()
    return rows.to(space.dtype)
