"""Makes the slots of rollouts, and judges what a worker wrote into them."""

import math
from dataclasses import dataclass, field
from typing import Any

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.conformance import policies
from podrace.conformance.findings import Judge
from podrace.conformance.spaces import CHOSEN, elements
from podrace.conformance.tensors import Blocks, Tensor
from podrace.tensor.v1 import tensor_pb2 as tensors

HORIZON = 32
ENVIRONMENTS = 3
COLUMNS = 5
FIRST = 1
"""The worker writes columns 1 to 3 of 5."""
OWN = range(FIRST, FIRST + ENVIRONMENTS)
TOLERANCE = 1e-3
ALWAYS_WRITTEN = ("observation", "action", "log_prob", "reward", "terminated", "truncated")


@dataclass
class History:
    """What the rollouts of a session have in common."""

    returns: list[float] = field(default_factory=lambda: [0.0] * ENVIRONMENTS)
    lengths: list[int] = field(default_factory=lambda: [0] * ENVIRONMENTS)
    last_observation: list[list[float]] | None = None


@dataclass(frozen=True)
class Slot:
    """A slot in memory of this process."""

    name: str
    blocks: Blocks
    opened: pb.OpenWorkerResponse
    replay_rows: int = 0
    """Rows of the replay memory of an off-policy algorithm; 0: the slot of an on-policy algorithm."""

    def create(self) -> pb.RolloutSlot:
        """Makes the slot, or another generation of it."""
        seen, acted = self.opened.observation_space, self.opened.action_space
        action_type = tensors.DATA_TYPE_INT64 if acted.kind in CHOSEN else tensors.DATA_TYPE_FLOAT32
        batch, size = [self.replay_rows or HORIZON, COLUMNS], self.opened.policy.recurrent_size
        specs = [
            ("observation", seen.data_type, [batch[0] + (not self.replay_rows), COLUMNS, *seen.shape]),
            ("action", action_type, [*batch, *acted.shape]),
            *([] if self.replay_rows else [("log_prob", tensors.DATA_TYPE_FLOAT32, batch)]),
            *([("state", tensors.DATA_TYPE_FLOAT32, [1, COLUMNS, size])] if size else []),
            ("reward", tensors.DATA_TYPE_FLOAT32, batch),
            ("terminated", tensors.DATA_TYPE_BOOL, batch),
            ("truncated", tensors.DATA_TYPE_BOOL, batch),
            ("final_observation", seen.data_type, [*batch, *seen.shape]),
        ]
        made = [tensors.TensorSpec(name=n, data_type=t, shape=s, layout_version=1) for n, t, s in specs]
        return pb.RolloutSlot(tensors=self.blocks.create(self.name, made), first_environment=FIRST)

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor of the slot."""
        return self.blocks.blocks[self.name].tensors[name]

    def rows(self, name: str) -> list[list[list[float]]]:
        """Returns the elements of the own columns, [T, N, ...] with the rest flattened."""
        tensor = self.tensor(name)
        values, width = tensor.values(), math.prod(tensor.spec.shape[2:])
        return [
            [list(values[(row * COLUMNS + column) * width :][:width]) for column in OWN]
            for row in range(tensor.spec.shape[0])
        ]


@dataclass(frozen=True)
class Rollout:
    """A rollout that a worker has finished."""

    slot: Slot
    response: pb.CollectRolloutResponse
    parameters: policies.Parameters
    version: int
    history: History


def judge_rollout(judge: Judge, rollout: Rollout) -> None:
    """Judges one rollout, after those before it of the same session."""
    _judge_writes(judge, rollout.slot)
    _judge_counts(judge, rollout)
    values = {name: rollout.slot.rows(name) for name in (*ALWAYS_WRITTEN, "final_observation")}
    numbers = [
        x for name in ("observation", "log_prob", "reward") for row in values[name] for lane in row for x in lane
    ]
    judge.require("finite", all(map(math.isfinite, numbers)), "an observation, reward or log_prob is not finite")
    _judge_ends(judge, values)
    _judge_policy(judge, rollout, values)
    _judge_returns(judge, rollout, values)
    before, rollout.history.last_observation = rollout.history.last_observation, values["observation"][-1]
    if before is not None:
        problem = "the first observation of a rollout is not the last one of the rollout before"
        judge.expect("continues", values["observation"][0] == before, problem)


def _judge_writes(judge: Judge, slot: Slot) -> None:
    for problem in slot.blocks.problems:
        kind, _, text = problem.partition(": ")
        judge.expect("chunk-digest" if kind == "digest" else "boxes", False, text)
    judge.require("boxes", not slot.blocks.problems, "a chunk was refused")
    judge.expect("chunk-digest", True, "")
    for name in (*ALWAYS_WRITTEN, "final_observation"):
        tensor = slot.tensor(name)
        width = math.prod(tensor.spec.shape[2:])
        written = [
            {column for column in range(COLUMNS) if any(tensor.written[(row * COLUMNS + column) * width :][:width])}
            for row in range(tensor.spec.shape[0])
        ]
        others = sorted(set().union(*written) - set(OWN))
        problem = f"columns {others} of '{name}' were written, {list(OWN)} belong to this worker"
        judge.expect("own-columns", not others, problem)
        if name in ALWAYS_WRITTEN:
            empty = [row for row, columns in enumerate(written) if not columns >= set(OWN)]
            judge.expect("rows", not empty, f"rows {empty} of '{name}' were not written")
    if judge.is_violated("rows") or judge.is_violated("own-columns"):
        judge.require("collects", False, "the slot was not filled")


def _judge_counts(judge: Judge, rollout: Rollout) -> None:
    response, wanted = rollout.response, HORIZON * ENVIRONMENTS
    versions = f"policy_version is {response.policy_version}, version {rollout.version} was to act"
    judge.expect("version", response.policy_version == rollout.version, versions)
    steps = f"environment_steps is {response.environment_steps} instead of {wanted}"
    judge.expect("steps", response.environment_steps == wanted, steps)


def _judge_ends(judge: Judge, values: dict[str, Any]) -> None:
    both, finals = 0, []
    for row in range(HORIZON):
        for lane in range(ENVIRONMENTS):
            terminated, truncated = (values[name][row][lane][0] for name in ("terminated", "truncated"))
            both += bool(terminated and truncated) or terminated not in (0, 1) or truncated not in (0, 1)
            if truncated:
                finals.append(values["final_observation"][row][lane])
    judge.expect("ends", not both, f"{both} steps are terminated and truncated, or neither 0 nor 1")
    if finals:
        problem = f"each of {len(finals)} last observations of truncated episodes is zero"
        judge.expect("final-observation", any(any(final) for final in finals), problem)


def _judge_policy(judge: Judge, rollout: Rollout, values: dict[str, Any]) -> None:
    space = rollout.slot.opened.action_space
    discrete, worst, wrong = space.kind not in (1,), 0.0, 0
    if space.kind not in (1, 2) or rollout.slot.opened.observation_space.kind != 1:
        judge.skip("log-prob", "computed for observations that are vectors and actions of one kind only")
        return
    layers = len(rollout.slot.opened.policy.hidden_sizes) + 1
    for row in range(HORIZON):
        for lane in range(ENVIRONMENTS):
            action, given = values["action"][row][lane], values["log_prob"][row][lane][0]
            if discrete and not 0 <= action[0] < space.choices:
                wrong += 1
                continue
            out = policies.outputs(rollout.parameters, layers, values["observation"][row][lane])
            if discrete:
                expected = policies.log_prob_discrete(out, int(action[0]))
            else:
                expected = policies.log_prob_continuous(out, rollout.parameters["log_std"], action)
            worst = max(worst, abs(expected - given) / (1.0 + abs(expected)))
    judge.expect("actions", not wrong, f"{wrong} actions are outside of the {space.choices} choices")
    problem = f"log_prob differs by up to {worst:.3g} from what the policy of the request gives for the stored actions"
    judge.expect("log-prob", worst <= TOLERANCE, problem)


def _judge_returns(judge: Judge, rollout: Rollout, values: dict[str, Any]) -> None:
    history, expected, lengths = rollout.history, [], []
    for row in range(HORIZON):
        for lane in range(ENVIRONMENTS):
            history.returns[lane] += values["reward"][row][lane][0]
            history.lengths[lane] += 1
            if values["terminated"][row][lane][0] or values["truncated"][row][lane][0]:
                expected.append(history.returns[lane])
                lengths.append(history.lengths[lane])
                history.returns[lane], history.lengths[lane] = 0.0, 0
    found = sorted(rollout.response.episode_returns)
    alike = len(found) == len(expected) and all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for one, other in zip(found, sorted(expected), strict=True)
    )
    first = f"the smallest is {found[0]:g} instead of {min(expected):g}" if found and expected else ""
    problem = f"{len(found)} returns of episodes for {len(expected)} that ended; {first}"
    judge.expect("returns", alike, problem)
    same = sorted(rollout.response.episode_lengths) == sorted(lengths)
    judge.expect("returns", same, f"episode_lengths are {list(rollout.response.episode_lengths)}, not {lengths}")


def listed_problem(opened: pb.OpenWorkerResponse, network: pb.PolicySpec | None = None) -> str:
    """Returns what is wrong with the tensors of the policy of an answer; empty if nothing is.

    Args:
        opened: The answer.
        network: The network of the request; None: that of `policies.network`.
    """
    inputs, space = elements(opened.observation_space), opened.action_space
    outputs = space.choices if space.kind == pb.Space.KIND_DISCRETE else elements(space)
    continuous = space.kind == pb.Space.KIND_CONTINUOUS
    wanted = policies.listed(network or policies.network(), inputs, outputs, continuous=continuous)
    expected = {spec.name: list(spec.shape) for spec in wanted.tensors}
    found = {spec.name: list(spec.shape) for spec in opened.policy.tensors}
    for name in expected:
        if found.get(name) != expected[name]:
            return f"'{name}' has the shape {found.get(name)} instead of {expected[name]}"
    unknown = sorted(set(found) - set(expected))
    return f"{unknown} are no parts of this policy" if unknown else ""
