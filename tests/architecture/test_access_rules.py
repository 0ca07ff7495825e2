"""Every method of every contract has a rule that says who may call it and what the call concerns."""

import importlib
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor

from podrace.access.rules import AGENT, ASSIGNMENT, EVALUATION, NONE, POD, TOURNAMENT
from podrace.access.v1 import access_pb2

REPOSITORY = Path(__file__).parents[2]


def methods() -> list[MethodDescriptor]:
    """The methods of all protos; a new file is found without being listed here."""
    found = []
    for path in sorted((REPOSITORY / "protos").rglob("*.proto")):
        name = ".".join(path.relative_to(REPOSITORY / "protos").with_suffix("").parts)
        file = importlib.import_module(f"{name}_pb2").DESCRIPTOR
        found += [method for service in file.services_by_name.values() for method in service.methods]
    return found


METHODS = methods()


def test_the_contracts_have_methods():
    assert len(METHODS) > 40


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name.removeprefix("podrace."))
def test_a_method_has_a_rule(method):
    assert method.GetOptions().HasExtension(access_pb2.access), "add option (podrace.access.v1.access)"
    rule = method.GetOptions().Extensions[access_pb2.access]
    assert rule.roles
    assert access_pb2.ROLE_UNSPECIFIED not in rule.roles
    assert rule.resource != access_pb2.RESOURCE_UNSPECIFIED


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name.removeprefix("podrace."))
def test_the_rule_of_a_method_names_a_field_of_its_kind(method):
    rule = method.GetOptions().Extensions[access_pb2.access]
    if not rule.field:
        assert rule.resource in (NONE, POD)
        return
    message = method.input_type
    *parents, last = rule.field.split(".")
    for parent in parents:
        message = message.fields_by_name[parent].message_type
    assert last in message.fields_by_name
    kinds = {TOURNAMENT: "tournament_id", AGENT: "agent_id", EVALUATION: "evaluation_id"}
    assert last == (kinds | {ASSIGNMENT: "assignment_id", POD: "pod_id"})[rule.resource]
