"""Provides the Python client of a podrace mesh, for scripts, notebooks and the `podrace` command.

    from pathlib import Path

    from podrace.client import Client
    from podrace.specification.files import load

    async with Client("localhost:50051") as client:
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
