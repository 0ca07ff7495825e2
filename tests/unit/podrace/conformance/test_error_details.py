"""Details of errors: what the contract describes is accepted, everything else is named."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2 as kinds
from google.rpc import status_pb2

from podrace.conformance.error_details import problem, reason
from podrace.rpc.status import DETAILS_KEY

CODE = grpc.StatusCode.NOT_FOUND


def described(*details: Any, code: int = 5, message: str = "gone") -> list[tuple[str, bytes]]:
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return [("other", b"x"), (DETAILS_KEY, status.SerializeToString())]


def info(reason: str, domain: str = "podrace") -> kinds.ErrorInfo:
    return kinds.ErrorInfo(reason=reason, domain=domain)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        described(),
        described(message=""),
        described(info("ERROR_REASON_NOT_FOUND"), kinds.ResourceInfo(resource_type="tournament"), kinds.RetryInfo()),
        described(info("QUOTA", domain="example.org")),
        described(kinds.Help()),
    ],
)
def test_what_the_contract_describes_or_leaves_open_is_right(metadata: list[tuple[str, bytes]]) -> None:
    assert problem(CODE, "gone", metadata) == ""


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([(DETAILS_KEY, b"\xff")], "are not a google.rpc.Status"),
        (described(code=3), "status code is 3, that of the call is 5"),
        (described(message="lost"), "message 'lost' is not that of the call"),
        (described(info("NOT_FOUND")), "the reason 'NOT_FOUND' is not in the contract"),
        (described(info("ERROR_REASON_UNSPECIFIED")), "is not in the contract"),
        (described(info("ERROR_REASON_UNAVAILABLE")), "does not belong to the status code NOT_FOUND"),
        (described(kinds.BadRequest()), "lists no violation"),
        (described(kinds.ResourceInfo(resource_name="t")), "has no resource_type"),
    ],
)
def test_other_details_are_named(metadata: list[tuple[str, bytes]], words: str) -> None:
    assert words in problem(CODE, "gone", metadata)


def test_a_reason_of_another_domain_is_none_of_the_contract() -> None:
    assert reason(described(info("ERROR_REASON_NOT_OPEN"))) == "ERROR_REASON_NOT_OPEN"
    assert reason(described(info("QUOTA", domain="example.org"))) == ""
    assert reason([(DETAILS_KEY, b"\xff")]) == ""
