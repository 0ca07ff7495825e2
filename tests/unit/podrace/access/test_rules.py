"""The rules of the contract, and who may do what by them."""

import pytest

from podrace.access.principal import ALL_ROLES, ROLES_BY_NAME, Principal, role_name, roles_with_included
from podrace.access.rules import AGENT, ASSIGNMENT, NONE, POD, TOURNAMENT, Resource, Rule, decide, resource_of, rule_of
from podrace.access.v1 import access_pb2
from podrace.agentpod.v1 import agentpod_pb2
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

ORCHESTRATOR = "/podrace.orchestrator.v1.OrchestratorService"
LEADER = Principal("pod/t-p1", frozenset({access_pb2.ROLE_POD_LEADER}), pod_id="t-p1", tournament_id="t", via="token")


def test_a_rule_has_the_roles_and_the_resource_of_the_contract():
    rule = rule_of(f"{ORCHESTRATOR}/RenewAssignment")
    assert rule.roles == {access_pb2.ROLE_POD_LEADER}
    assert (rule.resource, rule.path, rule.changes, rule.public) == (ASSIGNMENT, ("assignment_id",), True, False)
    assert not rule_of(f"{ORCHESTRATOR}/GetTournament").changes


@pytest.mark.parametrize("method", [f"{ORCHESTRATOR}/Unknown", "/unknown.Service/Method", "nonsense", ""])
def test_a_method_without_a_rule_is_refused_to_everyone(method):
    everyone = Principal("root", ALL_ROLES)
    decision = decide(everyone, rule_of(method), Resource())
    assert not decision.allowed
    assert "has no access rule" in decision.reason


def test_health_checks_need_no_credentials():
    assert rule_of("/grpc.health.v1.Health/Check").public


def test_an_operator_is_a_user_and_a_user_is_a_viewer():
    assert roles_with_included({access_pb2.ROLE_OPERATOR}) == {
        access_pb2.ROLE_OPERATOR,
        access_pb2.ROLE_USER,
        access_pb2.ROLE_VIEWER,
    }
    assert roles_with_included({access_pb2.ROLE_POD_LEADER}) == {access_pb2.ROLE_POD_LEADER}


def test_the_name_of_every_role_is_understood():
    assert {ROLES_BY_NAME[role_name(role)] for role in ALL_ROLES} == ALL_ROLES


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        (f"{ORCHESTRATOR}/ListTournaments", pb.ListTournamentsRequest(), Resource(NONE)),
        (f"{ORCHESTRATOR}/GetTournament", pb.GetTournamentRequest(tournament_id="t"), Resource(TOURNAMENT, "t", "t")),
        (
            f"{ORCHESTRATOR}/RenewAssignment",
            pb.RenewAssignmentRequest(assignment_id="x-a1-a22.3"),
            Resource(ASSIGNMENT, "x-a1-a22.3", "x-a1"),
        ),
        (
            f"{ORCHESTRATOR}/CompleteAssignment",
            pb.CompleteAssignmentRequest(assignment_id="t-e5.1"),
            Resource(ASSIGNMENT, "t-e5.1", "t"),
        ),
        (
            f"{ORCHESTRATOR}/AcquireAssignment",
            pb.AcquireAssignmentRequest(pod_id="t-p1"),
            Resource(POD, "t-p1", pod_id="t-p1"),
        ),
        (
            "/podrace.leaderboard.v1.UpdaterService/SubmitCandidate",
            board_pb.SubmitCandidateRequest(checkpoint={"agent_id": "t-a4"}),
            Resource(AGENT, "t-a4", "t"),
        ),
        (
            "/podrace.leaderboard.v1.LeaderboardService/GetLineage",
            board_pb.GetLineageRequest(tournament_id="t"),
            Resource(TOURNAMENT, "t", "t"),
        ),
        (
            "/podrace.agentpod.v1.WorkerService/OpenWorker",
            agentpod_pb2.OpenWorkerRequest(),
            Resource(POD, "own", pod_id="own"),
        ),
    ],
)
def test_a_call_concerns_what_its_request_names(method, request_, expected):
    assert resource_of(rule_of(method), request_, own_pod_id="own") == expected


@pytest.mark.parametrize("name", ["nonsense", "t-a", "t-b3.1", "t-a1.x", "-a1", "t-a1\n.1"])
def test_an_id_of_another_form_names_no_tournament(name):
    found = resource_of(rule_of(f"{ORCHESTRATOR}/RenewAssignment"), pb.RenewAssignmentRequest(assignment_id=name))
    assert found.tournament_id == ""


def rule(*roles: int, resource: int = NONE) -> Rule:
    return Rule("/a.B/C", frozenset(roles), resource)


def test_a_caller_without_the_role_is_refused_with_the_roles_that_may_call():
    decision = decide(LEADER, rule(access_pb2.ROLE_USER, access_pb2.ROLE_ORCHESTRATOR), Resource())
    assert not decision.allowed
    assert not decision.hidden
    assert decision.reason == "pod/t-p1 has the role pod-leader; /a.B/C needs user or orchestrator"


@pytest.mark.parametrize(
    ("resource", "allowed", "hidden"),
    [
        (Resource(TOURNAMENT, "t", "t"), True, False),
        (Resource(TOURNAMENT, "other", "other"), False, True),
        (Resource(AGENT, "t-a1", "t"), True, False),
        (Resource(AGENT, "other-a1", "other"), False, True),
        (Resource(POD, "t-p1", pod_id="t-p1"), True, False),
        (Resource(POD, "t-p2", pod_id="t-p2"), False, False),
        (Resource(POD, ""), False, False),
        (Resource(ASSIGNMENT, "t-a1.1", "t", "t-p1"), True, False),
        (Resource(ASSIGNMENT, "t-a1.1", "t", "t-p2"), False, True),
        # No pod holds it: the service answers that the epoch is outdated.
        (Resource(ASSIGNMENT, "t-a1.1", "t"), True, False),
        (Resource(ASSIGNMENT, "other-a1.1", "other", "other-p1"), False, True),
    ],
)
def test_a_pod_reaches_only_what_belongs_to_it(resource, allowed, hidden):
    decision = decide(LEADER, rule(access_pb2.ROLE_POD_LEADER, resource=resource.kind), resource)
    assert (decision.allowed, decision.hidden) == (allowed, hidden), decision


def test_a_pod_that_is_bound_to_no_tournament_works_for_any():
    standing = Principal("pod/node-1", LEADER.roles, pod_id="node-1")
    allowed = decide(standing, rule(access_pb2.ROLE_POD_LEADER), Resource(AGENT, "other-a1", "other"))
    assert allowed.allowed
