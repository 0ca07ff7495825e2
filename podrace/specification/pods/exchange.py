"""Checks the settings by which agents meet: verified candidates, shared experience, opponents in games. Pure."""

from collections.abc import Iterator, Mapping

from podrace.specification.declared_algorithms import entry_of
from podrace.specification.known.opponents import BUILT_IN, TRAINING
from podrace.specification.known.simulators import SIMULATORS
from podrace.specification.plugin_settings import is_service
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

LEAST_EPISODES = 8
"""With fewer episodes, invented scores would pass as chance."""
OWN_SHARE = 0.5
CAPACITY_STEPS = 100_000
"""Defaults of `experience.own_share` and `experience.capacity_steps`, if experience is shared."""
REPLAYED = "replay_capacity"
"""Hyperparameter of all algorithms that learn from a replay memory."""
OPPONENT_DEFAULTS: Mapping[str, int] = {"count": 4, "built_in": 0, "every_rollouts": 8, "matches": 6, "games": 32}
"""Defaults of `[opponents]`."""
GAMES = "game:"


def verification_problem(spec: TournamentSpec) -> str:
    """Returns why `evaluation.verify` cannot work; empty if it can."""
    wanted, episodes = spec.evaluation.verify, spec.evaluation.episodes
    if not wanted:
        return ""
    key = f"evaluation.verify = {wanted}"
    if spec.synchronous:
        return f"{key}: which candidate is verified first is not reproducible; set it to 0 when synchronous = true"
    if spec.pool.HasField("maximum_pods") and spec.pool.maximum_pods < 2:
        return f"{key}: another pod must verify what a pod states; set pool.maximum_pods to 2 or more, or verify to 0"
    if not LEAST_EPISODES <= wanted <= max(LEAST_EPISODES, episodes):
        return f"{key}: expected 0, or {LEAST_EPISODES} to evaluation.episodes = {episodes}"
    return ""


def fill_experience(spec: TournamentSpec) -> None:
    """Fills in how experience is shared, if it is."""
    experience = spec.experience
    if not experience.shared:
        return
    if not experience.HasField("own_share"):
        experience.own_share = OWN_SHARE
    if not experience.HasField("capacity_steps"):
        experience.capacity_steps = CAPACITY_STEPS


def experience_problems(spec: TournamentSpec) -> Iterator[str]:
    """Yields why experience cannot be shared."""
    if not spec.experience.shared:
        return
    key = "experience.shared = true"
    if spec.synchronous:
        yield f"{key}: which steps have arrived is not reproducible; set it to false when synchronous = true"
    if spec.pod.learners > 1:
        yield f"{key}: followers of a pod would not receive it; set pod.learners = 1, or shared to false"
    for name in ("replay_bytes", "tournament_replay_bytes"):
        if not getattr(spec.assignment, name):
            yield f"{key}: agents read stored replay memories; set assignment.{name} above 0, or shared to false"
    entries = (entry_of(name, algorithm) for name, algorithm in spec.algorithms.items())
    if not any(entry is None or REPLAYED in entry.hyperparameters for entry in entries):
        yield f"{key}: no algorithm of the specification learns from a replay memory; add one, such as 'sac' or 'dqn'"


def fill_opponents(spec: TournamentSpec) -> None:
    """Fills in the section, if the environment is a game or the specification has the section."""
    opponents = spec.opponents
    if not spec.HasField("opponents") and not spec.environment.id.startswith(GAMES):
        return
    if not opponents.HasField("training"):
        opponents.training = BUILT_IN
    opponents.rated = opponents.rated
    given = {field.name for field, _ in opponents.ListFields()}
    for name, default in OPPONENT_DEFAULTS.items():
        if name not in given:
            setattr(opponents, name, default)
    if opponents.rated and not spec.evaluation.HasField("racing"):
        spec.evaluation.racing = False


def opponent_problems(spec: TournamentSpec) -> Iterator[str]:
    """Yields why agents cannot play against each other."""
    opponents = spec.opponents
    if opponents.training not in ("", *TRAINING):
        yield f"opponents.training = {opponents.training!r}: expected one of {', '.join(TRAINING)}"
        return
    key = "opponents.rated = true" if opponents.rated else f"opponents.training = {opponents.training!r}"
    plays = opponents.training not in ("", BUILT_IN)
    if plays and opponents.built_in >= opponents.count:
        yield f"opponents.built_in = {opponents.built_in}: expected less than opponents.count = {opponents.count}"
    if not (plays or opponents.rated):
        return
    id = spec.environment.id
    if id in SIMULATORS and not id.startswith(GAMES):
        yield f"{key}: environment.id = {id!r} is not a game of two players; choose one that begins with {GAMES}"
    if spec.synchronous:
        yield f"{key}: which candidates are known is not reproducible; leave it out when synchronous = true"
    if plays and spec.pod.learners > 1:
        yield (
            f"opponents.training = {opponents.training!r}: followers of a pod would not receive opponents; set"
            " pod.learners = 1"
        )
    if plays and is_service(spec.pod.worker):
        yield (
            f"opponents.training = {opponents.training!r}: a worker of a third party plays against the built-in"
            " opponent; leave out pod.worker"
        )
    if opponents.rated:
        yield from _rated_problems(spec)


def _rated_problems(spec: TournamentSpec) -> Iterator[str]:
    key, evaluation = "opponents.rated = true", spec.evaluation
    if evaluation.racing:
        yield f"{key}: a rating needs all games; leave out evaluation.racing"
    if evaluation.verify:
        yield f"{key}: the games of another pod would have other opponents; set evaluation.verify = 0"
    if evaluation.evaluator:
        yield f"{key}: candidates are rated by the built-in evaluator; leave out evaluation.evaluator"
    if spec.champion.ensemble:
        yield f"{key}: the champion is the winner of a round robin; set champion.ensemble = 0"
    if spec.objective.HasField("target_return"):
        yield f"{key}: a rating is no return; replace objective.target_return, for instance by wall_clock_duration"
