"""Decides which pods are killed because they no longer call. Pure functions.

A pod whose processes are all stopped, or whose leader is blocked, keeps its processors and GPUs, and its launcher lists
it as running. It is noticed only because it makes no calls. Rules:
- A pod that holds a lease is silent from the end of the lease, any other pod from one lease duration after its last
  call.
- A pod that has started and has never called gets much more time, because its processes load libraries. A pod that
  waits for a node or an image is not considered silent, even after it was evicted.
- A pod that opens its roles gets more time: a simulator that compiles may block the process.
- A pod with a role that has been stuck for much longer than its deadline is killed too: its leader does not act.
- If no pod at all calls any more, the cause may be the connection, and then pods continue to train without it. Pods
  that stopped calling together get more time before they are killed, because the cause may also be a node that holds
  all of them. One that stopped long before is judged alone.
- Time in which the orchestrator itself did not run does not count.
- Time in which the launcher did not answer does not count either: the orchestrator was cut off, perhaps from the pods
  as well. Afterwards each pod gets its time to call again, until it would have exited by itself.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from podrace.orchestrator.v1 import orchestrator_pb2 as pb

OVERDUE_SECONDS = 60.0
"""Time that a leader has to replace a role after the role's deadline."""


@dataclass(frozen=True)
class Contact:
    """What is known about the calls of a pod. Times are monotonic, in seconds."""

    last_call: float | None
    """End of its last call; None if there was none."""
    lease_expires: float | None
    """End of its newest lease; None if it holds none."""
    waiting: bool = False
    """Whether one of its calls waits for an answer."""
    opening: bool = False
    """Whether it reported last that it opens its roles."""
    running_since: float | None = None
    """Since when it has been known to run without having called; None if it has called."""
    last_begin: float | None = None
    """When its last call began; None if there was none. A call that waits may end because the connection is lost."""
    overdue_role: str = ""
    """A role that was stuck, as last reported, and that the leader has not replaced; empty if there is none."""


@dataclass(frozen=True)
class SilenceLimits:
    """How long pods may be silent."""

    silent_seconds: float
    """Silence after which a pod is killed; infinite: never."""
    opening_seconds: float
    """The same for a pod that opens its roles."""
    starting_seconds: float
    """Time after which a pod that runs and has never called is killed; infinite: never."""
    together_seconds: float
    """Time since the last call after which pods are killed that stopped calling together; infinite: never."""
    orphaned_seconds: float = math.inf
    """Time since the last call after which a pod that runs would have exited by itself."""


def why_killed(
    now: float,
    contact: Contact,
    listening_since: float,
    lease_seconds: float,
    limits: SilenceLimits,
    *,
    together: bool = False,
) -> str:
    """Returns why a silent pod is killed; empty if it is not.

    Args:
        now: Monotonic time.
        contact: Calls of the pod.
        listening_since: Time since when the orchestrator has been running without interruption.
        lease_seconds: Duration of a lease.
        limits: How long pods may be silent.
        together: Whether all pods stopped calling together with this one; see `silent_together`.
    """
    if contact.overdue_role:
        return f"{contact.overdue_role} makes no progress, and its leader does not replace it"
    if contact.waiting:
        return ""
    if contact.running_since is not None:
        silence = now - max(contact.running_since, listening_since)
        so_far = f"it has been running for {now - contact.running_since:.0f} s without a call"
        return so_far if silence >= limits.starting_seconds else ""
    if contact.lease_expires is not None:
        end, what = contact.lease_expires, "its lease expired"
    elif contact.last_call is not None:
        end, what = contact.last_call + lease_seconds, "it holds no lease, and its next call was due"
    else:
        return ""
    silence = now - max(end, listening_since)
    allowed = max(limits.silent_seconds, limits.opening_seconds) if contact.opening else limits.silent_seconds
    others = ", and all other pods stopped calling at the same time" if together else ""
    if together:
        allowed = max(allowed, limits.together_seconds - lease_seconds)
    return f"it does not call: {what} {now - end:.0f} s ago{others}" if silence >= allowed else ""


def was_cut_off(now: float, unavailable_since: float | None, lease_seconds: float) -> bool:
    """Returns whether the launcher, which answers now, did not answer for so long that pods may be silent for it.

    Args:
        now: Monotonic time.
        unavailable_since: When it first did not answer; None if it did the last time.
        lease_seconds: Duration of a lease. Pods that train are not silent because of a shorter outage.
    """
    return unavailable_since is not None and now - unavailable_since >= lease_seconds


def counts_since(
    now: float, contact: Contact, listening_since: float, resumed_at: float, limits: SilenceLimits
) -> float:
    """Returns since when the silence of a pod counts.

    Args:
        now: Monotonic time.
        contact: Calls of the pod.
        listening_since: Time since when the orchestrator has been running without interruption.
        resumed_at: Time from which a pod that lost its connection to the orchestrator should call again.
        limits: How long pods may be silent. Repeated outages of the launcher keep no pod that hangs.
    """
    begin = contact.last_call if contact.last_call is not None else contact.running_since
    if begin is not None and now - begin >= limits.orphaned_seconds:
        return listening_since
    return max(listening_since, resumed_at)


def silent_together(
    now: float, contacts: Mapping[str, Contact], lease_seconds: float, before: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Returns the pods that stopped calling within one lease duration, if no pod has called since.

    A pod whose call waits for an answer has a connection that works: a lost one is noticed before a lease expires.

    Args:
        now: Monotonic time.
        contacts: Calls of all pods that run.
        lease_seconds: Duration of a lease.
        before: The previous answer: the last of these pods is not alone because the others have exited.
    """
    begins = [now if one.waiting else one.last_begin for one in contacts.values()]
    latest = max((begin for begin in begins if begin is not None), default=now)
    if now - latest < lease_seconds:
        return frozenset()
    found = frozenset(
        pod_id
        for pod_id, one in contacts.items()
        if one.last_call is not None and latest - one.last_call <= lease_seconds
    )
    return found if len(found) > 1 or found & before else frozenset()


def overdue_role(roles: Iterable[pb.RoleProgress]) -> str:
    """Returns the first role whose leader should have replaced it long ago; empty if there is none."""
    for role in roles:
        age = role.age_duration.seconds + role.age_duration.nanos / 1e9
        deadline = role.deadline_duration.seconds + role.deadline_duration.nanos / 1e9
        if role.HasField("deadline_duration") and age > deadline + OVERDUE_SECONDS:
            return role.role
    return ""
