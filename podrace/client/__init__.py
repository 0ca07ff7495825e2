<<<<<<< HEAD
"""Provides the Python client of a podrace mesh, for scripts, notebooks and the `podrace` command.

    from pathlib import Path

    from podrace.client import Client
    from podrace.specification.files import load

    async with Client("localhost:7700") as client:
        tournament = await client.create_tournament(load(Path("examples/cartpole.toml")))
        async for update in client.follow(tournament):
            print(update.tournament.environment_steps, update.tournament.best_score)
        for candidate in await client.list_board(tournament):
            print(candidate.rank, candidate.agent_id, candidate.score)
        champion = await client.get_champion(tournament)

Messages are those of `protos/`. The package imports neither click nor rich.
"""

from podrace.client.client import Client

__all__ = ["Client"]
=======
"""The Python client of the API, used by the command, notebooks and the dashboard. Imports neither click nor rich.

async with Clients("127.0.0.1:50051") as clients:
tournament = await clients.create_tournament(specification)
finished = await wait_until_finished(clients, tournament)
board = await clients.list_candidates(finished)
"""

from podrace.client.calls import Clients
from podrace.client.follow import wait_until_finished

__all__ = ["Clients", "wait_until_finished"]
>>>>>>> 1f25372 (Documents by task: concepts, running, clusters, extending, troubleshooting, results, benchmarks; generated references; every block is checked; README on one page; podrace.client and open_mesh for Python programs)
