"""Examines a WorkerService with recurrent policies, and with the slots of off-policy algorithms."""

import math
from typing import TYPE_CHECKING, Any

from podrace.agentpod.v1 import agentpod_pb2 as pb
from podrace.conformance import policies, slots
from podrace.conformance.calls import OK
from podrace.conformance.slots import ENVIRONMENTS, HORIZON, TOLERANCE

if TYPE_CHECKING:
    from podrace.conformance.worker import Worker

FIRST_VERSION = 60
STATE_SIZE = 4
REPLAY_ROWS = 3 * HORIZON
HEADS = {pb.Space.KIND_DISCRETE: "values", pb.Space.KIND_CONTINUOUS: "deterministic"}
"""Heads of off-policy algorithms by the kind of actions."""
REPLAYED = ("observation", "action", "reward", "terminated", "truncated")
KINDS = "computed for observations that are vectors and actions of one kind only"
REFUSED = ("INVALID_ARGUMENT", "UNIMPLEMENTED")


async def examine_recurrence(subject: "Worker") -> None:
    """Collects two rollouts with a recurrent policy, whose state continues over rollouts and policy versions."""
    opened = await _opened(subject, "conformance-6", policies.network(STATE_SIZE), ("recurrent-state",))
    if opened is None:
        return
    judge, slot = subject.judge, slots.Slot("slot", subject.blocks, opened)
    state = [[0.0] * STATE_SIZE] * ENVIRONMENTS
    for rollout in range(2):
        ref, parameters = subject.set_policy(opened, FIRST_VERSION + rollout)
        answer = await subject.collect("conformance-6", slot.create(), ref, rollout)
        judge.require("collects", answer.code == OK, f"CollectRollout of a recurrent policy is answered with {answer}")
        given = slot.rows("state")[0]
        worst = max(abs(one - other) for lane, other_lane in zip(given, state, strict=True)
                    for one, other in zip(lane, other_lane, strict=True))  # fmt: skip
        problem = f"`state` of rollout {rollout} differs by up to {worst:.3g} from the state after the steps before"
        judge.expect("recurrent-state", worst <= TOLERANCE, problem)
        state = _judge_recurrent_log_prob(subject, slot, parameters, given)


def _judge_recurrent_log_prob(
    subject: "Worker", slot: slots.Slot, parameters: policies.Parameters, state: list[list[float]]
) -> list[list[float]]:
    """Compares the stored logarithms with those of the policy; returns the state after the rollout."""
    values = {name: slot.rows(name) for name in slots.ALWAYS_WRITTEN}
    layers, worst, state = len(policies.HIDDEN), 0.0, [list(lane) for lane in state]
    for row in range(HORIZON):
        for lane in range(ENVIRONMENTS):
            action, given = values["action"][row][lane], values["log_prob"][row][lane][0]
            out, state[lane] = policies.recurrent_outputs(
                parameters, layers, values["observation"][row][lane], state[lane]
            )
            expected = policies.log_prob(slot.opened.action_space, out, parameters, action)
            worst = max(worst, abs(expected - given) / (1.0 + abs(expected)))
            if values["terminated"][row][lane][0] or values["truncated"][row][lane][0]:
                state[lane] = [0.0] * STATE_SIZE
    problem = f"log_prob differs by up to {worst:.3g} from what the recurrent policy gives for the stored actions"
    subject.judge.expect("recurrent-state", worst <= TOLERANCE, problem)
    return state


async def examine_replay(subject: "Worker") -> None:
    """Collects two rollouts into a replay memory, one after the other."""
    requirements = ("own-rows", "last-row", "greedy-actions")
    plain = await subject.open("conformance-7")
    head = HEADS.get(plain.action_space.kind)
    if head is None or not _has_vectors(plain):
        _skip(subject, requirements, KINDS)
        return
    opened = await _opened(subject, "conformance-8", policies.network(head=head), requirements)
    if opened is None:
        return
    slot = slots.Slot("memory", subject.blocks, opened, REPLAY_ROWS)
    made = slot.create()
    for rollout in range(2):
        made.first_row = HORIZON * (rollout + 1)
        ref, parameters = subject.set_policy(opened, FIRST_VERSION + rollout)
        answer = await subject.collect("conformance-8", made, ref, rollout)
        problem = f"CollectRollout into a replay memory is answered with {answer}"
        subject.judge.require("collects", answer.code == OK, problem)
        _judge_rows(subject, slot, range(HORIZON, made.first_row + HORIZON))
        _judge_actions(subject, slot, range(made.first_row, made.first_row + HORIZON), parameters)
    _judge_last_row(subject, slot)


async def _opened(
    subject: "Worker", session: str, policy: pb.PolicySpec, requirements: tuple[str, ...]
) -> pb.OpenWorkerResponse | None:
    """Opens a session; None if the worker refuses such policies, or its observations are no vectors."""
    if subject.judge.is_violated("rows") or subject.judge.is_violated("own-columns"):
        _skip(subject, requirements, "the worker does not fill a slot of an on-policy algorithm")
        return None
    request = subject.open_request(session)
    request.policy.CopyFrom(policy)
    answer = await subject.caller.call(subject.stub.OpenWorker, request, "deadline", contract_seconds=120.0)
    if answer.code in REFUSED:
        _skip(subject, requirements, f"the worker refuses such a policy: {answer}")
        return None
    subject.judge.require("opens", answer.code == OK, f"OpenWorker is answered with {answer}")
    opened: pb.OpenWorkerResponse = answer.get()
    if opened.action_space.kind not in HEADS or not _has_vectors(opened):
        _skip(subject, requirements, KINDS)
        return None
    wrong = slots.listed_problem(opened, policy)
    subject.judge.require("listed-tensors", not wrong, wrong)
    return opened


def _has_vectors(opened: pb.OpenWorkerResponse) -> bool:
    return opened.observation_space.kind == pb.Space.KIND_CONTINUOUS and len(opened.observation_space.shape) == 1


def _skip(subject: "Worker", requirements: tuple[str, ...], reason: str) -> None:
    for name in requirements:
        subject.judge.skip(name, reason)


def _judge_rows(subject: "Worker", slot: slots.Slot, own: range) -> None:
    for name in REPLAYED:
        tensor = slot.tensor(name)
        width = math.prod(tensor.spec.shape[2:])
        row_width = slots.COLUMNS * width
        written = {row for row in range(REPLAY_ROWS) if any(tensor.written[row * row_width : (row + 1) * row_width])}
        problem = f"rows {sorted(written ^ set(own))[:8]} of '{name}' were written although they are not those of the"
        problem += f" request, or were not written; its rows are {own.start} to {own.stop - 1}"
        subject.judge.require("own-rows", written == set(own), problem)


def _judge_actions(subject: "Worker", slot: slots.Slot, own: range, parameters: policies.Parameters) -> None:
    observations, actions = slot.rows("observation"), slot.rows("action")
    discrete, wrong = slot.opened.action_space.kind == pb.Space.KIND_DISCRETE, 0
    for row in own:
        for lane in range(ENVIRONMENTS):
            out = policies.outputs(parameters, len(policies.HIDDEN) + 1, observations[row][lane])
            wrong += not _is_greedy(out, actions[row][lane], discrete)
    problem = f"{wrong} actions are not those of the policy, whose `exploration` is 0"
    subject.judge.expect("greedy-actions", not wrong, problem)


def _is_greedy(outputs: list[float], action: list[Any], discrete: bool) -> bool:
    if discrete:
        choice = int(action[0])
        return 0 <= choice < len(outputs) and outputs[choice] >= max(outputs) - TOLERANCE
    return all(abs(math.tanh(one) - a) <= TOLERANCE for one, a in zip(outputs, action, strict=True))


def _judge_last_row(subject: "Worker", slot: slots.Slot) -> None:
    """Compares the end of the first rollout with the beginning of the second."""
    last, truncated = 2 * HORIZON - 1, slot.rows("truncated")
    finals, begins = slot.rows("final_observation")[last], slot.rows("observation")[last + 1]
    lanes = [lane for lane in range(ENVIRONMENTS) if not truncated[last][lane][0]]
    wrong = [lane for lane in lanes if finals[lane] != begins[lane]]
    problem = f"`final_observation` of the last row of environments {wrong} is not what the next rollout begins with"
    subject.judge.expect("last-row", not wrong, problem)
