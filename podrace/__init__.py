"""Provides the code that all services share. Imports none of the services.

`podrace.load_policy` acts with a trained policy (podrace.policy.loading); numpy is imported when it is first used.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podrace.policy.loading import load_policy as load_policy

__version__ = "0.1.0"

# gRPC's C core would print its own lines next to each error line. Set the variable to debug it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> Any:
    if name == "load_policy":
        from podrace.policy.loading import load_policy  # numpy is needed for this alone

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
