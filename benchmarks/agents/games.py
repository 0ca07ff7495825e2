"""Plays games of a champion against the scripted player, and lists the ratings of successive champions.

Reads the newest tournament of a home that trained a `game:` environment with `opponents.rated`:

    podrace train examples/connect-four.toml --home F
    python -m benchmarks.agents.games --home F [--games 1000] [--tournament latest]

Prints the candidates that led when they arrived, with their ratings and their mean returns against the built-in
opponent; then wins, draws and losses of the champion, and the win rate with its 95 % interval (Wilson 1927). Moves are
the most likely ones, half of the games begin with a move of the champion, and no game was used for any selection.
"""

import argparse
import math
from pathlib import Path

import torch

import podrace
from agentpod.learner.policy_loader import load_published_policy
from agentpod.models.actors import PolicyActor
from agentpod.models.policy import Policy
from agentpod.roles.episodes import play
from agentpod.roles.opponents import match_results
from podrace.api.blocking import Tournament
from podrace.checkpoint.v1.checkpoint_pb2 import MatchResult
from podrace.checkpoint_store import open_store
from simulators import make

SEED = 987_654_321
"""Seed of the games; evaluations of tournaments derive theirs from the seed of the specification."""
LANES = 200


def interval(wins: int, games: int, deviations: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson interval of a share."""
    share, square = wins / games, deviations**2
    middle = (share + square / (2 * games)) / (1 + square / games)
    half = deviations / (1 + square / games) * math.sqrt(share * (1 - share) / games + square / (4 * games**2))
    return middle - half, middle + half


def print_leaders(tournament: Tournament) -> None:
    """Prints the candidates that had the highest rating when they arrived."""
    best = -math.inf
    print("| Leader | Rating | Return against the built-in opponent | Environment steps |\n|---|---|---|---|")
    for one in sorted(tournament.candidates(all_submissions=True), key=lambda one: one.submit_time):
        if one.score > best:
            best, steps = one.score, one.environment_steps / 1e6
            shown = f"{one.score:.0f} ± {one.standard_error:.0f} | {one.episode_metrics['return']:.2f} | {steps:.2f}M"
            print(f"| {one.agent_id.rpartition('-')[2]} | {shown} |")


def games_of(store: str, tournament_id: str, manifest_digest: str, environment: str, games: int) -> MatchResult:
    """Plays games of a candidate against the scripted player."""
    published = load_published_policy(open_store(store).within(tournament_id), manifest_digest)
    simulator = make(environment, LANES, {"opponent": "scripted"})
    policy = Policy(simulator.observation_space, simulator.action_space, published.network)
    flat = [published.tensors[name].flatten() for name in policy.tensors()]
    policy.load(torch.cat(flat))
    actor = PolicyActor(policy, LANES, torch.Generator().manual_seed(SEED), greedy=True)
    with torch.no_grad():
        played = play(simulator, actor, games, SEED)
    (result,) = match_results(played.returns, 0, LANES, [])
    return result


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--tournament", default="latest")
    parser.add_argument("--environment", default="game:connect-four")
    parser.add_argument("--games", type=int, default=1000)
    arguments = parser.parse_args()
    with podrace.open_home(arguments.home) as mesh:
        tournament = mesh.tournament(arguments.tournament)
        print_leaders(tournament)
        champion = tournament.champion()
        tournament_id = tournament.tournament_id
    store = (arguments.home / "store").resolve().as_uri().replace("file://", "folder://")
    result = games_of(store, tournament_id, champion.candidate_id, arguments.environment, arguments.games)
    low, high = interval(result.wins, arguments.games)
    print(f"\n{champion.agent_id}: {champion.reason}\n")
    print(f"{result.wins} wins, {result.draws} draws, {result.losses} losses against the scripted player")
    print(
        f"win rate {100 * result.wins / arguments.games:.1f} %, 95 % interval {100 * low:.1f} % to {100 * high:.1f} %"
    )


if __name__ == "__main__":
    main()
