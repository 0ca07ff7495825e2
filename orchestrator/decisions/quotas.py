"""Decides what an owner of tournaments may have: how many, which priority, and which share of the pods. Pure functions.

The limits are the operator's. 0 means no limit. An owner is a name in a namespace, see podrace.access.ownership.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from orchestrator.decisions.fair_share import YIELD_SECONDS, OwnerShare
from podrace.access.ownership import Ownership
from podrace.errors import QUOTA_EXCEEDED, InvalidArgument, ResourceExhausted
from podrace.specification.messages import bad_spec
from podrace.tournament.v1.tournament_pb2 import TournamentSpec

RETRY_SECONDS = 60.0
"""Suggested delay before a request is repeated that was refused because of other tournaments of its owner."""
INSPECTION_RETRY_SECONDS = 10.0
"""Suggested delay before a check is repeated that was refused because of other checks: about the time of one check."""
HIGHEST_PRIORITY = 1000


@dataclass(frozen=True)
class OwnerQuota:
    """Limits of one owner, where they differ from those of all owners."""

    tournaments: int | None = None
    pods: int | None = None
    gpus: int | None = None
    stored_bytes: int | None = None
    inspections: int | None = None
    priority: int | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Quotas:
    """Limits of what each owner may have, and how owners share the pods.

    Raises:
        InvalidArgument: A value is out of range; the message has the key.
    """

    tournaments: int = 100
    """Tournaments of one owner that have not ended; another one is refused. 0: no limit."""
    pods: int = 0
    """Pods of all tournaments of one owner; 0: no limit."""
    gpus: int = 0
    """GPUs of all pods of one owner; 0: no limit."""
    stored_bytes: int = 0
    """Bytes of the checkpoint files of all tournaments of one owner, as the last collection of the leaderboard measured
    them. Above it, no agents are generated for this owner. 0: no limit."""
    inspections: int = 2
    """Specifications of one owner that are being checked with `validate_only`, or wait for it. Each takes a process,
    and there is one at a time. 0: no limit."""
    all_inspections: int = 16
    """The same for all owners together; 0: no limit."""
    priority: int = 0
    """Highest `pool.priority` that specifications of users may have."""
    operator_priority: int = 100
    """Highest `pool.priority` that specifications of operators may have."""
    yield_seconds: float = YIELD_SECONDS
    """If several owners have tournaments, pods of an owner are drained when the owner has had more than its fair share
    for this long. Shorter times move pods faster, and interrupt more agents when shares change often."""
    owners: Mapping[str, OwnerQuota] = field(default_factory=dict)
    """Limits of single owners, by name, or by `NAMESPACE/NAME`: `tournaments`, `pods`, `gpus`, `stored_bytes`,
    `inspections` and `priority` in place of those above, and `weight` (1): an owner of weight 2 gets twice the pods of
    one of weight 1. For instance `quota.owners.alice.pods=20`."""

    def __post_init__(self) -> None:
        counts = ("tournaments", "pods", "gpus", "stored_bytes", "inspections", "all_inspections")
        for key in (*counts, "yield_seconds"):
            _check_range(f"quota.{key}", getattr(self, key), 0, None)
        for key in ("priority", "operator_priority"):
            _check_range(f"quota.{key}", getattr(self, key), -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
        for name, own in self.owners.items():
            for each in fields(own):
                least = -HIGHEST_PRIORITY if each.name == "priority" else 0
                most = HIGHEST_PRIORITY if each.name == "priority" else None
                if (value := getattr(own, each.name)) is not None:
                    _check_range(f"quota.owners.{name}.{each.name}", value, least, most)
            if not own.weight > 0:
                raise InvalidArgument(f"quota.owners.{name}.weight = {own.weight:g}: expected more than 0")

    def limit(self, key: str, owner: Ownership) -> tuple[int, str]:
        """Returns a limit of an owner, and the setting that it comes from."""
        name = owner.display_name
        own = getattr(self.owners.get(name), key, None)
        return (own, f"quota.owners.{name}.{key}") if own is not None else (getattr(self, key), f"quota.{key}")


def share_of(quotas: Quotas, owner: Ownership) -> OwnerShare:
    """Returns what an owner may have of the pods."""
    name = owner.display_name
    pods, gpus = quotas.limit("pods", owner)[0], quotas.limit("gpus", owner)[0]
    weight = quotas.owners[name].weight if name in quotas.owners else 1.0
    return OwnerShare(name, weight, pods or None, gpus or None, quotas.yield_seconds)


def check_tournaments(quotas: Quotas, owner: Ownership, existing: int) -> None:
    """Refuses another tournament of an owner.

    Args:
        quotas: The limits.
        owner: The owner.
        existing: Number of its tournaments that have not ended.

    Raises:
        ResourceExhausted: It has as many as it may have (QUOTA_EXCEEDED).
    """
    limit, setting = quotas.limit("tournaments", owner)
    if limit and existing >= limit:
        name = owner.display_name
        what = f"{name} has {existing} tournaments that have not ended; stop one, or wait until one has ended"
        raise _exceeded(setting, limit, name, what, retry_seconds=RETRY_SECONDS)


def check_inspections(quotas: Quotas, owner: Ownership, own: int, everyone: int) -> None:
    """Refuses to check another specification of an owner.

    Args:
        quotas: The limits.
        owner: The owner.
        own: Number of its specifications that are being checked or wait for it.
        everyone: The same for all owners.

    Raises:
        ResourceExhausted: They are as many as there may be (QUOTA_EXCEEDED).
    """
    name = owner.display_name
    own_limit, all_limit = quotas.limit("inspections", owner), (quotas.all_inspections, "quota.all_inspections")
    for who, count, (limit, setting) in ((name, own, own_limit), ("all owners", everyone, all_limit)):
        if limit and count >= limit:
            what = f"validate_only: {count} specifications of {who} are being checked; repeat this one later"
            raise _exceeded(setting, limit, name, what, retry_seconds=INSPECTION_RETRY_SECONDS)


def check_pool(quotas: Quotas, owner: Ownership, spec: TournamentSpec) -> None:
    """Refuses a specification whose smallest pool is larger than all pods of its owner may be.

    Raises:
        ResourceExhausted: It could never have that pool (QUOTA_EXCEEDED).
    """
    pods = max(1, spec.pool.minimum_pods)
    for key, needed in (("pods", pods), ("gpus", pods * spec.pod.gpus)):
        limit, setting = quotas.limit(key, owner)
        if limit and needed > limit:
            what = f"pool.minimum_pods = {spec.pool.minimum_pods} and pod.gpus = {spec.pod.gpus} need {needed} {key}"
            raise _exceeded(setting, limit, owner.display_name, what)


def check_priority(quotas: Quotas, owner: Ownership, spec: TournamentSpec, *, operator: bool) -> None:
    """Refuses a priority above that of the caller's role.

    Args:
        quotas: The limits.
        owner: The owner of the tournament.
        spec: The specification.
        operator: Whether the caller is an operator.

    Raises:
        InvalidArgument: The priority is too high (BAD_SPEC).
    """
    limit, setting = quotas.limit("priority", owner)
    if operator and quotas.operator_priority > limit:
        limit, setting = quotas.operator_priority, "quota.operator_priority"
    if spec.pool.priority > limit:
        raise bad_spec(
            f"pool.priority = {spec.pool.priority}: expected at most {limit}, which the operator sets by {setting}"
        )


def check_update(
    quotas: Quotas, owner: Ownership, before: TournamentSpec, after: TournamentSpec, *, operator: bool
) -> None:
    """Refuses a change of a pool beyond the limits. What the change leaves as it is or lowers may exceed them.

    An operator may have raised the priority, or lowered the limits since the tournament was created.

    Args:
        quotas: The limits.
        owner: The owner of the tournament.
        before: The specification without the change.
        after: The specification with the change.
        operator: Whether the caller is an operator.

    Raises:
        InvalidArgument: The priority is raised too high (BAD_SPEC).
        ResourceExhausted: The smallest pool grows beyond what it could have (QUOTA_EXCEEDED).
    """
    if after.pool.priority > before.pool.priority:
        check_priority(quotas, owner, after, operator=operator)
    if after.pool.minimum_pods > before.pool.minimum_pods:
        check_pool(quotas, owner, after)


def _exceeded(
    setting: str, limit: int, owner: str, what: str, *, retry_seconds: float | None = None
) -> ResourceExhausted:
    return ResourceExhausted(
        f"{what}; the limit of {setting} is {limit}, which the operator sets",
        reason=QUOTA_EXCEEDED,
        metadata={"setting": setting, "limit": str(limit), "owner": owner},
        retry_seconds=retry_seconds,
    )


def _check_range(key: str, value: float, least: float, most: float | None) -> None:
    if value < least or (most is not None and value > most):
        above = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
        raise InvalidArgument(f"{key} = {value:g}: expected {above}")


NO_QUOTAS = Quotas(tournaments=0, inspections=0, all_inspections=0)
"""No limits; every owner has the weight 1."""
