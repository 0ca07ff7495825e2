"""Provides the code that all services share. Imports none of the services.

Its public names are those of the Python interface (podrace.api): `train`, `connect`, `open_home`, `load_policy`, the
module `aio`, and what these return. They are imported when they are first used: `import podrace` imports neither numpy
nor gRPC.

access/                decides who may call which method: authenticators, rules, tokens
api/                   the Python interface
backup/                copies of databases, and archives of tournaments, in the checkpoint store
certificates/          makes and names the certificates of a mesh
checkpoint_store/      stores checkpoints: objects, manifests, pointers
cli/                   the command `podrace`
client/                the client of the services, which needs no terminal
comparison/            compares policies by the returns of their episodes (pure)
conformance/           examines whether a service keeps its contract
dashboard/             a web page that shows and controls tournaments
database/              the database of a service
discovery/             describes what a specification may name and what a server does
limits/                decides what a specification may name: modules, services, files, URLs
listing/               filters and orders of lists, labels
mesh/                  runs the services of a home as local processes
plugins/               runs user code behind a contract
policy/                acts with policies outside of a mesh, without torch
processes/             lifelines, identity of processes, cleanup of process groups
qualification/         qualifies a machine: runs the parts and shows what they found
rpc/                   gRPC servers and channels, one error model
serving/               the policy server
spaces/                composite observations as one row of numbers
specification/         reads, completes and checks specifications
tensor_transport/      moves tensors between processes; needs torch
config.py              reads the configuration of a service; service.py: runs its process
errors.py              the errors that a caller can handle
field_bounds.py        checks messages against the bounds of their fields
health.py              checks the health of a service; http_server.py: HTTP servers
telemetry.py           logs and metrics; tracing.py: traces
tls.py                 mutual TLS between services
ownership.py           checks that files and folders belong to this user
seeding.py             derives seeds; digests.py: digests of parts and policies
gpus.py                reads the GPUs of this machine; disk_space.py: its free space
page_tokens.py         tokens of pages; page_bytes.py: their size
progress_deadlines.py  how long a role may make no progress
backoff.py             how long to wait after failures; tasks.py: waits for tasks
printable.py           escapes control characters

The packages named v1 or v2 are generated from `protos/` (`make protos`) and carry the names of the contracts:
access/v1, agentpod/v1, bounds/v1, checkpoint/v1, discovery/v1, error/v1, evolution/v1, inference/v2, leaderboard/v1,
orchestrator/v1, policy/v1, simulator/v1, tensor/v1, tournament/v1.
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
