"""Provides the code that all services share. Imports none of the services.

Its public names are those of the Python interface (podrace.api): `train`, `connect`, `open_home`, `load_policy`, the
module `aio`, and what these return. They are imported when they are first used: `import podrace` imports neither numpy
nor gRPC.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from podrace.api import Agent as Agent
    from podrace.api import Candidate as Candidate
    from podrace.api import Champion as Champion
    from podrace.api import ChampionPart as ChampionPart
    from podrace.api import Event as Event
    from podrace.api import LearningPoint as LearningPoint
    from podrace.api import Mesh as Mesh
    from podrace.api import Rows as Rows
    from podrace.api import Tournament as Tournament
    from podrace.api import TournamentStatus as TournamentStatus
    from podrace.api import aio as aio
    from podrace.api import connect as connect
    from podrace.api import open_home as open_home
    from podrace.api import train as train
    from podrace.policy.loading import load_policy as load_policy

__version__ = "0.1.0"

_INTERFACE = (
    "Agent", "Candidate", "Champion", "ChampionPart", "Event", "LearningPoint", "Mesh", "Rows", "Tournament",
    "TournamentStatus", "aio", "connect", "open_home", "train",
)  # fmt: skip

# gRPC's C core would print its own lines next to each error line. Set the variable to debug it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> Any:
    if name == "load_policy":
        from podrace.policy.loading import load_policy  # numpy is needed for this alone

        return load_policy
    if name in _INTERFACE:
        from podrace import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_INTERFACE, "load_policy"])
