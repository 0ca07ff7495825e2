"""A message is checked against the bounds in its contract, and everything that is wrong is listed at once."""

import math
from typing import Any

import pytest
from google.protobuf.message import Message

from podrace.bounds.v1 import bounds_pb2
from podrace.checkpoint.v1.checkpoint_pb2 import Checkpoint, Evaluation, Trace
from podrace.checkpoint.v1.store_pb2 import SwapPointerRequest
from podrace.field_bounds import MOST_VIOLATIONS, bounds_of, is_id, limits, violations
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.simulator.v1 import simulator_pb2
from podrace.tensor.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorRef, TensorSpec
from podrace.tournament.v1 import tournament_pb2

DIGEST = "0123456789abcdef" * 4


def lines(message: Message) -> list[str]:
    return [str(violation) for violation in violations(message)]


def duration_request(seconds: int, nanos: int = 0) -> pb.AcquireAssignmentRequest:
    request = pb.AcquireAssignmentRequest(pod_id="p", incarnation="i")
    request.wait_duration.seconds, request.wait_duration.nanos = seconds, nanos
    return request


def evaluation(**fields: Any) -> pb.CreateEvaluationRequest:
    return pb.CreateEvaluationRequest(request_id="r", **fields)


def with_option(value: float) -> pb.CreateEvaluationRequest:
    request = evaluation()
    request.options["list"] = [1.0, {"inner": value}]
    return request


REFUSED: list[tuple[Message, str]] = [
    (pb.GetTournamentRequest(tournament_id="a b"), "tournament_id = 'a b': expected 1 to 253 letters"),
    (pb.GetTournamentRequest(tournament_id="-a"), "tournament_id"),
    (pb.GetTournamentRequest(tournament_id="a" * 254), "tournament_id"),
    (pb.GetTournamentRequest(tournament_id="../secret"), "tournament_id"),
    (pb.ListEventsRequest(page_token="a/b"), "page_token"),
    (pb.CreateEvaluationRequest(), "request_id: is missing"),
    (SwapPointerRequest(tournament_id="t", agent_id="t-a0"), "pointer: is missing"),
    (pb.CancelTournamentRequest(request_id="r", reason="é" * 2049), "expected at most 4096 bytes"),
    (
        pb.CreateEvaluationRequest(request_id="r", checkpoint=Checkpoint(manifest_digest=DIGEST[:-1])),
        "checkpoint.manifest_digest",
    ),
    (
        pb.CreateEvaluationRequest(request_id="r", members=[Checkpoint(), Checkpoint(agent_id="?")]),
        "members[1].agent_id",
    ),
    (
        pb.CreateEvaluationRequest(request_id="r", members=[Checkpoint()] * 101),
        "members: has 101 elements, expected at most 100",
    ),
    (with_option(math.inf), "options: expected finite numbers"),
    (with_option(math.nan), "options: expected finite numbers"),
    (pb.RenewAssignmentRequest(progress=pb.Progress(environment_steps=10**15 + 1)), "progress.environment_steps"),
    (pb.RenewAssignmentRequest(progress=pb.Progress(plane="a\x1b[2J")), r"progress.plane = 'a\\x1b[2J'"),
    (duration_request(-1), "wait_duration: expected a valid duration"),
    (duration_request(1, -1), "wait_duration"),
    (duration_request(1, 10**9), "wait_duration"),
    (duration_request(315_576_000_001), "wait_duration"),
    (board_pb.GenerateAgentRequest(request_id="r", failed_agent_ids=["a", "b", "c d"]), "failed_agent_ids[2]"),
    (
        pb.CompleteAssignmentRequest(request_id="r", evaluation=Evaluation(metrics={"m" * 257: 1.0})),
        "has a key of more than 256 bytes",
    ),
    (
        pb.CompleteAssignmentRequest(request_id="r", evaluation=Evaluation(traces={"t": Trace(labels=["x" * 257])})),
        "evaluation.traces.t.labels[0]",
    ),
    (tournament_pb2.TournamentSpec(pod=tournament_pb2.PodSpec(workers=0)), "pod.workers = 0: expected 1 to 1024"),
    (
        tournament_pb2.TournamentSpec(objective=tournament_pb2.ObjectiveSpec(target_return=math.nan)),
        "objective.target_return = nan: expected a finite number",
    ),
    (TensorRef(spec=TensorSpec(name="x", data_type=DATA_TYPE_FLOAT32, shape=[1] * 9)), "spec.shape: has 9 elements"),
    (TensorRef(spec=TensorSpec(name="x", data_type=DATA_TYPE_FLOAT32, shape=[1, 2**63])), "spec.shape[1]"),
]


@pytest.mark.parametrize(("message", "line"), REFUSED, ids=[line[:40] for _, line in REFUSED])
def test_a_value_out_of_bounds_is_named_with_its_path(message: Message, line: str):
    (found,) = lines(message)
    assert line in found


ACCEPTED: list[Message] = [
    pb.GetTournamentRequest(),
    pb.GetTournamentRequest(tournament_id="cart-pole_v1.2-abcdef-a17.3"),
    pb.GetTournamentRequest(tournament_id="a" * 253),
    pb.ListEventsRequest(page_token="WyJ0Iiw0XQ==", page_size=2**32 - 1),
    pb.CancelTournamentRequest(request_id="any text: é \n", reason="é" * 2048),
    pb.WatchTournamentRequest(tournament_id="t", resume_token=2**64 - 1),
    pb.RenewAssignmentRequest(progress=pb.Progress(environment_steps=10**15, score=math.nan)),
    duration_request(0),
    duration_request(315_576_000_000),
    with_option(-1e300),
    pb.CompleteAssignmentRequest(request_id="r", evaluation=Evaluation(episode_returns=[1.0, math.nan])),
    simulator_pb2.StreamStepsRequest(),
]


@pytest.mark.parametrize("message", ACCEPTED, ids=lambda message: message.DESCRIPTOR.name)
def test_a_value_within_its_bounds_is_accepted(message: Message):
    assert not lines(message)


def test_all_violations_are_listed_at_once():
    request = pb.RenewAssignmentRequest(
        assignment_id="a b", lease_epoch=2**63, progress=pb.Progress(environment_steps=2**62, plane="\n")
    )
    assert [violation.field for violation in violations(request)] == [
        *("assignment_id", "lease_epoch", "progress.environment_steps", "progress.plane")
    ]


def test_the_list_of_violations_is_limited():
    request = board_pb.GenerateAgentRequest(request_id="r", unfinished_agent_ids=["a b"] * 1000)
    assert len(violations(request)) == MOST_VIOLATIONS


def test_what_the_receiver_checks_is_left_to_it():
    spec = tournament_pb2.TournamentSpec(name="n" * 64)
    assert not lines(pb.CreateTournamentRequest(request_id="r", spec=spec))
    assert lines(spec)


def test_a_specification_has_a_largest_size_before_its_receiver_looks_at_it():
    spec = tournament_pb2.TournamentSpec()
    spec.environment.options["text"] = "x" * 300_000
    (found,) = lines(pb.CreateTournamentRequest(request_id="r", spec=spec))
    assert found.startswith("spec: expected at most 262144 bytes")


def test_limits_are_those_of_the_contract():
    assert limits(tournament_pb2.PodSpec.DESCRIPTOR)["workers"] == (1, 1024)
    assert "precision" not in limits(tournament_pb2.PodSpec.DESCRIPTOR)


def test_bounds_are_readable_from_the_descriptor_alone():
    field = pb.RenewAssignmentRequest.DESCRIPTOR.fields_by_name["assignment_id"]
    assert bounds_of(field).format == bounds_pb2.FORMAT_ID


def test_ids_have_one_form():
    assert is_id("cartpole-abcdef-a17.3")
    assert not any(map(is_id, ("", ".", "..", "a/b", "a\n", "ä", "a" * 254)))
