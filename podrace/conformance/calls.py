"""Makes calls with deadlines, and returns failures as answers: a status code is what is examined here."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from podrace import rpc
from podrace.conformance import error_details
from podrace.conformance.findings import Judge
from podrace.errors import Unauthenticated, Unavailable

Response = TypeVar("Response")
CONNECT_SECONDS = 10.0
OK = "OK"


@dataclass(frozen=True)
class Answer(Generic[Response]):
    """What a call returned."""

    code: str
    """Name of the status code; `OK` with a response."""
    message: str = ""
    response: Response | None = None
    reason: str = ""
    """Reason of the ErrorInfo of a failed call; empty if there is none with the domain of podrace."""
    details_problem: str = ""
    """What is wrong with the details of a failed call; empty if nothing is, or if it has none."""

    def __str__(self) -> str:
        return f"{self.code} ({self.message})" if self.message else self.code

    def get(self) -> Response:
        """Returns the response of a call that succeeded."""
        assert self.response is not None
        return self.response

    def judged(self, judge: Judge, call: str) -> "Answer[Response]":
        """Records whether the details of a failed call have the form of the contract; returns this answer."""
        if self.response is None:
            problem = f"the details of the error of {call}, {self.code}, are wrong: {self.details_problem}"
            judge.expect("error-details", not self.details_problem, problem)
        return self


def failure(error: grpc.aio.AioRpcError) -> Answer[Any]:
    """Returns a failed call as an answer; raises Unauthenticated as `status` does."""
    return status(error.code(), error.details(), error.trailing_metadata())


def status(code: grpc.StatusCode, details: str | None, metadata: error_details.Metadata | None = None) -> Answer[Any]:
    """Returns the status of a failed call as an answer.

    Raises:
        Unauthenticated: The service wants to know who calls, so nothing can be examined.
    """
    message = " ".join((details or "").split())[:300]
    if code == grpc.StatusCode.UNAUTHENTICATED:
        raise Unauthenticated(
            "the service answers UNAUTHENTICATED: give --token-file FILE with a token that it accepts (it gets no token"
            f" of the environment, because it may not be part of the mesh); its message: {message}"
        )
    pairs = tuple(metadata or ())
    wrong = error_details.problem(code, details or "", pairs)
    return Answer(code.name, message, reason=error_details.reason(pairs), details_problem=wrong)


@dataclass(frozen=True)
class Caller:
    """Calls the examined service, and judges whether it answers in time."""

    judge: Judge
    most_seconds: float
    """Longest wait for one answer; the contract may allow less, and allows more only where this is larger."""

    async def call(
        self, method: Callable[..., Awaitable[Response]], request: Any, requirement: str, *, contract_seconds: float
    ) -> Answer[Response]:
        """Makes one unary call.

        Args:
            method: The method of a stub.
            request: The request.
            requirement: Name of the requirement that the call answers in time.
            contract_seconds: The deadline of the contract.
        """
        seconds = min(contract_seconds, self.most_seconds)
        try:
            answer = Answer(OK, response=await method(request, timeout=seconds))
        except grpc.aio.AioRpcError as error:
            answer = failure(error)
        late, name = answer.code == "DEADLINE_EXCEEDED", type(request).__name__
        answer.judged(self.judge, name)
        self.judge.require(requirement, not late, f"no answer to {name} within {seconds:g} s")
        return answer


async def check_reachable(channel: grpc.aio.Channel, address: str, most_seconds: float) -> None:
    """Waits until a connection is open, for at most CONNECT_SECONDS and the time that the caller has.

    Raises:
        Unavailable: There is none.
    """
    seconds = min(CONNECT_SECONDS, most_seconds)
    try:
        await rpc.wait_until_ready(channel, seconds)
    except Unavailable:
        raise Unavailable(
            f"{address}: no connection within {seconds:g} s; start the service first, and if it uses TLS, set "
            "PODRACE_TLS_CERTIFICATE_FILE, PODRACE_TLS_KEY_FILE and PODRACE_TLS_AUTHORITY_FILE"
        ) from None
