"""Lets every caller make every call, and judges whether the requests are within the bounds of the contract."""

from collections.abc import AsyncIterable
from typing import Any

from google.protobuf.message import Message

from podrace.access.credentials import Credentials
from podrace.access.guard import Guard
from podrace.access.principal import ALL_ROLES, Principal
from podrace.access.rules import Rule
from podrace.conformance.findings import Judge
from podrace.field_bounds import violations


class AcceptsAll:
    """Lets every caller make every call, whatever token it sends: the token is examined by the calls."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Returns a caller with all roles."""
        return Principal("examined", ALL_ROLES)


class ExaminingGuard(Guard):
    """Sees every request before the server refuses it.

    A request that is out of bounds never reaches a servicer, so nothing else can report it.
    """

    def __init__(self, judge: Judge) -> None:
        super().__init__([AcceptsAll()])
        self._judge = judge

    def check_role(self, principal: Principal, peer: str, rule: Rule, request: Any) -> None:
        """Judges a request; every caller may make it."""
        if isinstance(request, AsyncIterable):
            return
        name = rule.method.rpartition("/")[2]
        if not isinstance(request, Message):
            self._judge.expect("bounds", False, f"the bytes of a request of {name} are not a message of this method")
            return
        found = violations(request)
        for violation in found:
            self._judge.expect("bounds", False, f"{name}: {violation}")
        if not found:
            self._judge.expect("bounds", True, "")
