"""Runs a service that authorizes no call: `python -m pools.unguarded MODULE ARGUMENTS`. For measurements only.

Fields of requests are checked as usual, so that the difference is the cost of authorization alone.
"""

import runpy
import sys
from typing import Any

from podrace.access.interceptor import AccessInterceptor, Admit, Context
from podrace.access.lease_tokens import LeaseTokens, LeaseVerifier
from podrace.access.rules import Rule
from podrace.access.service_access import ServiceAccess
from podrace.access.tokens import PodTokens


def _admitting(interceptor: AccessInterceptor, rule: Rule, _: str) -> Admit:
    async def admit(request: Any, _: Context) -> Any:
        return interceptor._check_request(request, rule.method)

    return admit


async def _authenticate(*_: Any) -> None:
    """Authenticates no one."""


def main() -> None:
    """Replaces what authorizes calls, and runs the module."""
    AccessInterceptor._admitting = _admitting  # type: ignore[method-assign]
    AccessInterceptor.authenticate = _authenticate  # type: ignore[assignment,method-assign]
    ServiceAccess.lease_tokens = property(lambda _: LeaseTokens(None))  # type: ignore[assignment,method-assign]
    ServiceAccess.lease_verifier = property(lambda _: LeaseVerifier(None))  # type: ignore[assignment,method-assign]
    ServiceAccess.pod_tokens = property(lambda _: PodTokens(None))  # type: ignore[assignment,method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
