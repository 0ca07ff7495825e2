"""Provides the Python interface: trains, follows and reads tournaments from scripts and notebooks.

    import podrace

    tournament = podrace.train("examples/cartpole.toml")
    tournament.champion()
    tournament.candidates().to_frame()

`podrace` has these names, which are imported when they are first used. `podrace.aio` has the same functions and methods
for asyncio.
"""

from podrace.api import aio
from podrace.api.blocking import Mesh, Tournament, connect, open_home, train
from podrace.api.records import (
    Agent,
    Candidate,
    Champion,
    ChampionPart,
    Event,
    LearningPoint,
    Rows,
    TournamentStatus,
)

__all__ = [
    "Agent",
    "Candidate",
    "Champion",
    "ChampionPart",
    "Event",
    "LearningPoint",
    "Mesh",
    "Rows",
    "Tournament",
    "TournamentStatus",
    "aio",
    "connect",
    "open_home",
    "train",
]
