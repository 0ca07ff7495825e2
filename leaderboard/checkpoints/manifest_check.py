"""Compares the manifest of a submitted checkpoint with its agent, with the specification, and with itself. Pure.

A manifest is written by a pod, and so are the files that it lists. What can be checked without playing an episode:

- It is the agent's: tournament, algorithm, seed, hyperparameters, starting checkpoint, and a lease epoch that the agent
  has had.
- The networks of its policies are code of podrace, or code that the specification names.
- Its counters are possible: the steps of the agent are within its budget, and the steps that the policy was trained on
  are those of the agent and of the checkpoint that it started from.
- Its score adds up: all numbers are finite, the number of episodes is one that the specification allows, and mean and
  variance are those of the listed returns.
- Its parts can be those of a policy of this agent: one part `policy`, which is the one that was scored, and whose
  tensors have the sizes that the hyperparameters require.

A pod that invents consistent returns passes all these checks. `evaluation.verify` makes another pod play the episodes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from google.protobuf import json_format

from leaderboard.checkpoints.policy_shape import NetworkValues, PolicyShape, mismatches
from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation, Manifest
from podrace.checkpoint_store.replay_parts import is_replay
from podrace.checkpoint_store.store import DIGEST
from podrace.comparison.racing import FIRST_STAGE
from podrace.errors import BAD_CHECKPOINT, BAD_DIGEST, NON_FINITE, DataLoss, InvalidArgument, PodraceError
from podrace.leaderboard.v1.leaderboard_pb2 import Agent
from podrace.specification import catalog
from podrace.specification.declared_algorithms import NETWORK_CLASS, names_code
from podrace.specification.environment_search import COUNT
from podrace.specification.pods.sizes import grows_by_learners
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

MAXIMUM_STEPS = 10**15
"""Largest number of environment steps of a policy."""
ROLLOUTS_BEYOND_BUDGET = 2
"""An agent ends after the rollout that reaches its budget, while the next one may be under way."""
MOST_PARTS = 100_000
EVALUATION_EPOCHS = 8
ROUNDING = 1e-6
"""Relative difference of a mean or a variance from that of the listed returns."""
MOST_MATCHES, MOST_GAMES = 32, 1_000_000
"""Largest number of opponents of a policy, and of games with one result against one of them."""
POLICY_PART, TEST_VECTORS_PART = "policy", "test_vectors"


@dataclass(frozen=True)
class Expected:
    """What the leaderboard knows about the agent of a checkpoint."""

    agent: Agent
    """The agent."""
    spec: TournamentSpec
    """Resolved specification of its tournament."""
    inherited_steps: int | None
    """Environment steps behind the checkpoint that it started from; None if they are not known."""
    lease_epoch: int
    """Lease epoch of the request."""


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint is refused."""

    field: str
    """Field of the manifest."""
    message: str
    """What is wrong with it, in one line."""
    error: type[PodraceError] = InvalidArgument
    """Class of the error."""
    reason: str = BAD_CHECKPOINT
    """Machine-readable reason."""

    def raised(self, manifest_digest: str) -> PodraceError:
        """Returns the error to raise."""
        return self.error(f"manifest {manifest_digest}: {self.field} {self.message}", reason=self.reason)


def first_problem(manifest: Manifest, expected: Expected) -> Problem | None:
    """Returns the first reason to refuse a manifest; None if there is none."""
    return next(_problems(manifest, expected), None)


def _problems(manifest: Manifest, expected: Expected) -> Iterator[Problem]:
    yield from _owner(manifest, expected)
    yield from _networks(manifest, expected.spec)
    yield from _parts(manifest)
    yield from _counters(manifest, expected)
    if manifest.snapshot:
        return
    if not manifest.evaluation.episodes:
        yield Problem("evaluation", "has no score; publish it with an evaluation to submit it")
        return
    yield from _finite(manifest)
    yield from _evaluation(manifest.evaluation, expected.spec)
    policies = [part.digest for part in manifest.parts if part.name == POLICY_PART]
    if policies != [manifest.evaluation.policy_digest]:
        yield Problem(
            "evaluation.policy_digest",
            f"= {manifest.evaluation.policy_digest[:64]!r}: the checkpoint has {policies}; score the policy that is"
            " published",
            DataLoss,
            BAD_DIGEST,
        )


def _owner(manifest: Manifest, expected: Expected) -> Iterator[Problem]:
    agent = expected.agent
    for name in ("agent_id", "tournament_id", "algorithm", "seed"):
        stated, wanted = getattr(manifest, name), getattr(agent, name)
        if stated != wanted:
            shown = f"{stated[:200]!r}" if isinstance(stated, str) else stated
            yield Problem(name, f"= {shown}: expected {wanted!r}")
    if manifest.hyperparameters != agent.hyperparameters:
        names = {*manifest.hyperparameters.fields, *agent.hyperparameters.fields}
        differing = sorted(
            name
            for name in names
            if manifest.hyperparameters.fields.get(name) != agent.hyperparameters.fields.get(name)
        )
        yield Problem("hyperparameters", f"differ from those of the agent: {differing[0][:64]!r}")
    start = agent.starting_checkpoint.manifest_digest
    if manifest.starting_manifest_digest not in ("", start):
        yield Problem("starting_manifest_digest", f"= {manifest.starting_manifest_digest[:64]!r}: expected {start!r}")
    mates = [mate.manifest_digest for mate in agent.mates]
    if manifest.mate_manifest_digests and list(manifest.mate_manifest_digests) != mates:
        yield Problem("mate_manifest_digests", f"has {len(manifest.mate_manifest_digests)} entries: expected {mates}")
    if not 1 <= manifest.lease_epoch <= expected.lease_epoch:
        yield Problem("lease_epoch", f"= {manifest.lease_epoch}: expected 1 to {expected.lease_epoch}")


def _networks(manifest: Manifest, spec: TournamentSpec) -> Iterator[Problem]:
    """Yields policies whose network is code that the specification does not name."""
    for name, description in sorted(manifest.policies.items()):
        if not names_code(spec, NETWORK_CLASS, address := description.network_class):
            field = f"policies[{name[:64]!r}].network_class"
            yield Problem(field, f"= {address[:100]!r}: the specification does not name this network")


def _parts(manifest: Manifest) -> Iterator[Problem]:
    names = [part.name for part in manifest.parts]
    if len(names) > MOST_PARTS or len(set(names)) != len(names):
        yield Problem("parts", f"has {len(names)} entries with {len(set(names))} names; list each name once")
        return
    if POLICY_PART not in names:
        yield Problem("parts", f"has no entry {POLICY_PART!r}")
    for part in manifest.parts:
        if not DIGEST.fullmatch(part.digest) or (not part.size_bytes and not is_replay(part)):
            yield Problem(
                "parts",
                f"has an entry {part.name[:64]!r} without a SHA-256 in lower-case hexadecimal, or without a size",
            )


def _counters(manifest: Manifest, expected: Expected) -> Iterator[Problem]:
    own, behind = manifest.environment_steps, manifest.lineage_environment_steps
    most = most_steps(expected.agent, expected.spec)
    if own > most:
        yield Problem("environment_steps", f"= {own}: the agent can train at most {most}")
    if expected.inherited_steps is not None and behind != expected.inherited_steps + own:
        yield Problem(
            "lineage_environment_steps",
            f"= {behind}: expected {own} of the agent and {expected.inherited_steps} that it started with",
        )
    if not own <= behind <= MAXIMUM_STEPS:
        yield Problem("lineage_environment_steps", f"= {behind}: expected {own} to {MAXIMUM_STEPS}")


def most_steps(agent: Agent, spec: TournamentSpec) -> int:
    """Returns the most environment steps of its own that an agent can have trained.

    Pods that users start (launcher `external`) choose their own layout, so twice the budget is always possible.
    """
    budget = agent.assignment_environment_steps or spec.assignment.environment_steps
    if not budget:
        return MAXIMUM_STEPS
    values = agent.hyperparameters.fields
    lanes = values[COUNT].number_value if COUNT in values else spec.environment.count
    rollout = values["horizon"].number_value if "horizon" in values else 1
    together = max(1, lanes) * max(1, spec.pod.workers) * max(1, spec.pod.learners) * max(1, rollout)
    # Learners that train together end with a fusion round.
    fuses = spec.pod.learners > 1 or grows_by_learners(spec.pod)
    rollouts = max(ROLLOUTS_BEYOND_BUDGET, spec.fusion.every_updates if fuses else 0)
    return int(budget + max(budget, rollouts * together))


def _finite(manifest: Manifest) -> Iterator[Problem]:
    """Yields numbers that are not finite, or negative where that is impossible."""
    evaluation = manifest.evaluation
    spreads = {
        "evaluation.variance": evaluation.variance,
        "evaluation.wall_seconds": evaluation.wall_seconds,
        "evaluation.mean_length_steps": evaluation.mean_length_steps,
        "core_seconds": manifest.core_seconds,
        "training_seconds": manifest.training_seconds,
        **{f"evaluation.other_epochs[{i}] error": one.standard_error for i, one in enumerate(evaluation.other_epochs)},
    }
    numbers = {
        "evaluation.mean_return": evaluation.mean_return,
        **spreads,
        **{f"evaluation.episode_returns[{i}]": value for i, value in enumerate(evaluation.episode_returns)},
        **{
            f"evaluation.episode_metrics[{name[:64]!r}]": value
            for name, value in sorted(evaluation.episode_metrics.items())
        },
        **{f"evaluation.other_epochs[{i}]": one.mean_return for i, one in enumerate(evaluation.other_epochs)},
    }
    for name, number in numbers.items():
        if not math.isfinite(number):
            yield Problem(name, f"= {number} is not finite", DataLoss, NON_FINITE)
    for name, number in spreads.items():
        if number < 0:
            yield Problem(name, f"= {number:g} is negative")


def _evaluation(evaluation: Evaluation, spec: TournamentSpec) -> Iterator[Problem]:
    least, most = episodes_allowed(evaluation, spec)
    if not least <= evaluation.episodes <= most:
        allowed = f"{least}" if least == most else f"{least} to {most}"
        yield Problem("evaluation.episodes", f"= {evaluation.episodes}: the specification allows {allowed}")
    if not evaluation.evaluator and evaluation.objective != _objective(spec):
        yield Problem("evaluation.objective", f"= {evaluation.objective[:64]!r}: expected {_objective(spec)!r}")
    if spec.evaluation.verify and not evaluation.HasField("epoch"):
        yield Problem("evaluation.epoch", "is missing: evaluation.verify plays the same episodes again")
    yield from _returns(evaluation)
    opponents = [match.opponent_candidate_id for match in evaluation.matches]
    if len(opponents) > MOST_MATCHES or len(set(opponents)) < len(opponents):
        yield Problem("evaluation.matches", f"has {len(opponents)} opponents: expected {MOST_MATCHES} different ones")
    if any(max(one.wins, one.draws, one.losses) > MOST_GAMES for one in evaluation.matches):
        yield Problem("evaluation.matches", f"has more than {MOST_GAMES} games with one result against one opponent")
    epochs = [one.epoch for one in evaluation.other_epochs]
    named = [evaluation.epoch, *epochs] if evaluation.HasField("epoch") else epochs
    if any(epoch >= EVALUATION_EPOCHS for epoch in named) or len(set(named)) < len(named):
        yield Problem(
            "evaluation.epoch", f"and other_epochs = {named[:16]}: expected different ones below {EVALUATION_EPOCHS}"
        )


def episodes_allowed(evaluation: Evaluation, spec: TournamentSpec) -> tuple[int, int]:
    """Returns the smallest and the largest number of episodes of a score."""
    wanted = spec.evaluation.episodes
    if not wanted:
        return 1, MAXIMUM_STEPS
    if evaluation.evaluator:
        return wanted, MAXIMUM_STEPS
    return (min(wanted, FIRST_STAGE) if spec.evaluation.racing else wanted), wanted


def _objective(spec: TournamentSpec) -> str:
    return "" if spec.evaluation.objective == "return" else spec.evaluation.objective


def _returns(evaluation: Evaluation) -> Iterator[Problem]:
    returns: Sequence[float] = evaluation.episode_returns
    if not returns:
        return
    if len(returns) != evaluation.episodes:
        yield Problem(
            "evaluation.episode_returns",
            f"has {len(returns)} returns of {evaluation.episodes} episodes; list all of them, or none",
        )
        return
    if len(evaluation.episode_folds) not in (0, len(returns)):
        yield Problem("evaluation.episode_folds", f"has {len(evaluation.episode_folds)} of {len(returns)} episodes")
    size = max(1.0, *map(abs, returns))
    mean, stated = fmean(returns), evaluation.mean_return
    if abs(mean - stated) > ROUNDING * size:
        yield Problem("evaluation.mean_return", f"= {stated:.9g}: the mean of the episode returns is {mean:.9g}")
    spread = variance(returns) if len(returns) > 1 else 0.0
    # A mean that is large compared with the deviation costs digits.
    if abs(spread - evaluation.variance) > ROUNDING * (spread + size):
        yield Problem(
            "evaluation.variance", f"= {evaluation.variance:.9g}: that of the episode returns is {spread:.9g}"
        )


def shape_problem(shape: PolicyShape, agent: Agent) -> Problem | None:
    """Returns why a policy cannot belong to an agent with its hyperparameters; None if it may belong to it."""
    known = catalog.ALGORITHMS.get(agent.algorithm)
    if known is None:
        return None  # not an algorithm of this build
    values: dict[str, Any] = {name: one.default for name, one in known.hyperparameters.items()}
    values |= json_format.MessageToDict(agent.hyperparameters)
    if values["network_class"]:
        return None  # only pods import its class
    network = NetworkValues(
        hidden_sizes=[int(size) for size in values["hidden_sizes"]],
        torso=values["torso"] != "none",
        recurrent_size=int(values.get("recurrent_size", 0)),
        normalizes=bool(values["normalize_observations"]),
        shares_parameters=bool(values.get("share_parameters", True)),
    )
    problem = next(mismatches(shape, network), None)
    return Problem(f"parts[{POLICY_PART!r}]", problem) if problem else None
