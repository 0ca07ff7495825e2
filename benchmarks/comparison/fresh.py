"""Evaluates policies of every contender on the same fresh episodes, in a separate process.

    python -m benchmarks.comparison.fresh < request.json > answer.json

Every evaluation has one lane per episode, so that episode i has the same first state and the same noise for every
policy: returns of different policies can be compared episode by episode. Policies act greedily.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from podrace.seeding import purpose_seed

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 3600.0
MAXIMUM_EPISODE_STEPS = 100_000
SEED = 20_000_003
"""Seed of fresh episodes: no contender selects by them."""


def seed_of(run_seed: int) -> int:
    """Returns the seed of the fresh episodes of all runs of a seed.

    Contenders play the same episodes, so that they can be compared in pairs. Runs of other seeds play others: if all
    did, easy episodes would make every reported score seem too low.
    """
    return purpose_seed(SEED, "fresh episodes", run_seed)


@dataclass(frozen=True)
class Policy:
    """Where a policy is stored."""

    kind: str
    """`podrace`: digests of manifests in a checkpoint store; `sb3`: a file of trial_log.py; `random`: uniform
    actions."""
    place: str = ""
    """URI of the store, or path of the file."""
    digests: Sequence[str] = ()
    """Of a podrace policy; several: an ensemble."""


@dataclass(frozen=True)
class Request:
    """What to evaluate."""

    environment: str
    options: Mapping[str, Any]
    policies: Sequence[Policy]
    episodes: Sequence[int]
    """Number of episodes for each policy."""
    seed: int = SEED


@dataclass(frozen=True)
class Score:
    """The result for one policy."""

    mean: float
    standard_error: float
    episodes: int
    returns: Sequence[float] = field(default_factory=list)


def evaluate(request: Request, *, python: str = sys.executable, cores: int = 2) -> list[Score]:
    """Evaluates policies in another process, in order.

    Args:
        request: What to evaluate.
        python: Interpreter of the process. It needs the library that trained the policies.
        cores: Number of threads that the process may use.

    Raises:
        RuntimeError: The process failed; the message has the end of its log.
    """
    done = subprocess.run(
        [python, "-m", __spec__.name if __spec__ else __name__],
        input=json.dumps(asdict(request)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
        cwd=ROOT,
        env=environment(cores),
    )
    if done.returncode:
        raise RuntimeError(f"the evaluation on fresh episodes failed: {done.stderr[-1000:]}")
    return [Score(**score) for score in json.loads(done.stdout)]


def environment(cores: int) -> dict[str, str]:
    """Returns the variables of a process that imports this package and computes on some cores."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(cores), "MKL_NUM_THREADS": str(cores)}


# --- in the process ----------------------------------------------------------------------------------------------


def answer(request: Request) -> list[Score]:
    """Evaluates the policies of a request, each distinct one once."""
    known: dict[tuple[str, int], Score] = {}
    scores = []
    for policy, episodes in zip(request.policies, request.episodes, strict=True):
        key = (json.dumps(asdict(policy)), episodes)
        if key not in known:
            known[key] = play(request, policy, episodes)
        scores.append(known[key])
    return scores


def play(request: Request, policy: Policy, episodes: int) -> Score:
    """Plays the episodes of one policy."""
    import torch

    from simulators import make

    simulator = make(request.environment, episodes, options=request.options)
    try:
        actor = make_actor(policy, simulator, request.seed)
        with torch.no_grad():
            returns = _play(simulator, actor, episodes, request.seed)
    finally:
        simulator.close()
    error = float(returns.std()) / math.sqrt(episodes) if episodes > 1 else 0.0
    return Score(float(returns.mean()), error, episodes, returns.tolist())


def _play(simulator: Any, actor: Any, episodes: int, seed: int) -> Any:
    """Returns the returns of the first episode of each lane, by lane."""
    import torch

    from simulators.base import SingleEpisodes

    begin = simulator.reset_for_single_episodes if isinstance(simulator, SingleEpisodes) else simulator.reset
    observation = begin(seed)
    total = torch.zeros(episodes, dtype=torch.float64)
    alive = torch.ones(episodes, dtype=torch.bool)
    for _ in range(MAXIMUM_EPISODE_STEPS):
        step = simulator.step(actor.act(observation))
        total += torch.where(alive, step.reward.cpu().double(), 0.0)
        ended = (step.terminated | step.truncated).cpu()
        actor.reset(ended)
        alive &= ~ended
        if not bool(alive.any()):
            return total
        observation = step.observation
    raise RuntimeError(f"an episode has not ended after {MAXIMUM_EPISODE_STEPS} steps")


def make_actor(policy: Policy, simulator: Any, seed: int) -> Any:
    """Returns the actor of a policy, see agentpod.models.actors."""
    if policy.kind == "podrace":
        return _podrace_actor(policy, simulator)
    if policy.kind == "sb3":
        from benchmarks.comparison.sb3_trial import load_actor

        return load_actor(Path(policy.place), simulator)
    return RandomActor(simulator, seed)


def _podrace_actor(policy: Policy, simulator: Any) -> Any:
    import torch

    from agentpod.learner.checkpoint_files import load_policy
    from agentpod.learner.policy_loader import load_published_policy
    from agentpod.models.actors import EnsembleActor, PolicyActor
    from agentpod.models.policy import Policy as Network
    from podrace.checkpoint_store import open_store

    store = open_store(policy.place, only_reading=True)
    members = []
    for digest in policy.digests:
        published = load_published_policy(store, digest)
        network = Network(simulator.observation_space, simulator.action_space, published.network)
        load_policy(network.tensors(), published.tensors)
        # Also refreshes what is derived from the tensors.
        network.load(network.flat.clone())
        members.append(PolicyActor(network, simulator.count, torch.Generator(), greedy=True))
    return members[0] if len(members) == 1 else EnsembleActor(members, simulator.action_space.most_choices)


class RandomActor:
    """Draws actions uniformly: choices, or between the bounds of the action space."""

    def __init__(self, simulator: Any, seed: int) -> None:
        import torch

        self._space, self._count = simulator.action_space, simulator.count
        self._generator = torch.Generator().manual_seed(seed)

    def act(self, observation: Any) -> Any:
        import torch

        space = self._space
        if space.kind == "discrete":
            return torch.randint(space.n, (self._count,), generator=self._generator)
        low, high = (torch.tensor(bound).reshape(space.shape) for bound in (space.low, space.high))
        return low + torch.rand(self._count, *space.shape, generator=self._generator) * (high - low)

    def reset(self, done: Any) -> None:
        pass


def main() -> None:
    """Answers the request on standard input."""
    values = json.load(sys.stdin)
    policies = [Policy(**policy) for policy in values.pop("policies")]
    output = os.fdopen(os.dup(1), "w")
    # Libraries print to stdout.
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    scores = answer(Request(policies=policies, **values))
    json.dump([asdict(score) for score in scores], output)
    output.flush()


if __name__ == "__main__":
    main()
