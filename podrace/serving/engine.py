"""Answers requests for actions with the version that serves, and changes that version between two requests.

Invariants:
- A request is given to one version when it arrives, and that version alone answers it.
- A version serves only after it was loaded, has computed a batch, and has the spaces of the previous version.
- A version stays loaded while it serves, may be rolled back to, is compared, or a session belongs to it.
- Everything but the computation happens on the event loop, and no record is changed across a wait.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from podrace.errors import Aborted, FailedPrecondition, InvalidArgument, NamedResource, NotFound, PodraceError
from podrace.policy.observations import check_finite
from podrace.serving import metrics
from podrace.serving.batcher import ActResult, Batcher, BatchItem
from podrace.serving.decisions import versions
from podrace.serving.decisions.batch_cut import BatchLimits
from podrace.serving.decisions.gate import ACCEPTED, GateVerdict
from podrace.serving.decisions.versions import Change, Comparison, ServingRecord
from podrace.serving.policy_version import PolicyVersion
from podrace.serving.sessions import KeptState, SessionLimits, SessionTable
from podrace.tasks import cancel_all

SAME_ACTION = 1e-6
"""Difference up to which two continuous actions count as equal in a comparison."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EngineLimits:
    """Bounds of what the engine keeps and computes."""

    batch: BatchLimits = field(default_factory=BatchLimits)
    """Batches of requests."""
    sessions: SessionLimits = field(default_factory=SessionLimits)
    """Recurrent state that is kept for clients."""
    maximum_versions: int = 16
    """Most versions that are loaded; beyond it, sessions of versions that no longer serve are ended."""


class ActInput(NamedTuple):
    """A request as a client makes it."""

    observation: NDArray[Any]
    """[N, *shape]."""
    session: str = ""
    """Key of a session, unique over all callers; empty: none."""
    begins: NDArray[np.bool_] | None = None
    """[N], the environments that begin an episode; None: none."""
    state: NDArray[np.float32] | None = None
    """[N, S], recurrent state that the client keeps itself."""
    random: np.random.Generator | None = None
    """Samples the actions; None: actions without exploration."""
    version: str = ""
    """Version that must answer; empty: the one that serves."""
    deadline: float = float("inf")
    """On the clock of the engine."""
    owner: str = ""
    """Whose session it is; empty: of a caller whose sessions are not limited."""


class PolicyGate(Protocol):
    """Examines a policy that may replace the one that serves.

    verdict = await gate.judge(offered, serving)
    """

    async def judge(self, offered: PolicyVersion, serving: PolicyVersion) -> GateVerdict:
        """Returns whether `offered` may serve in place of `serving`.

        Raises:
            PodraceError: It could not be examined; it is offered again later.
        """
        ...


class PolicyEngine:
    """The one object that holds policies and answers requests.

    Attributes:
        record: Which versions serve.
    """

    def __init__(self, limits: EngineLimits, *, clock: Callable[[], float], gate: PolicyGate | None = None) -> None:
        """Creates an engine without a policy.

        Args:
            limits: Bounds.
            clock: Returns seconds, as the event loop's `time`.
            gate: Examines offered policies; None: every one is accepted.
        """
        self.record = ServingRecord()
        self._limits, self._clock, self._gate = limits, clock, gate
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._batchers: dict[str, Batcher] = {}
        self._sessions = SessionTable(limits.sessions)
        self._shadows: set[asyncio.Task[None]] = set()

    # --- requests ------------------------------------------------------------------------------------------------

    @property
    def current(self) -> PolicyVersion:
        """The version that serves.

        Raises:
            NotFound: None serves yet.
        """
        return self.policy(versions.version_for(ServingRecord(self.record.current), ""))

    def policy(self, version: str) -> PolicyVersion:
        """Returns a loaded version.

        Raises:
            NotFound: It is not loaded.
        """
        return self._batcher(version).policy

    def loaded(self) -> list[PolicyVersion]:
        """Returns the versions that are loaded."""
        return [batcher.policy for batcher in self._batchers.values()]

    async def act(self, asked: ActInput) -> ActResult:
        """Answers a request by one version.

        Raises:
            NotFound: No version serves yet, or the version that must answer is not loaded.
            InvalidArgument: A number is not finite, or the state has another shape.
            PodraceError: As the sessions and the batcher raise.
        """
        check_finite("observations", asked.observation)
        version = asked.version or versions.version_for(self.record, asked.session or secrets.token_hex(8))
        if asked.session and not asked.version and self._keeps_state(asked, version):
            return await self._act_in_session(asked, version)
        batcher = self._batcher(version)
        if asked.state is not None:
            self._check_state(batcher.policy, asked.state, len(asked.observation))
        acted = await batcher.act(BatchItem(asked.observation, asked.state, asked.random, asked.deadline))
        self._shadow(asked, acted)
        return acted

    def _check_state(self, policy: PolicyVersion, state: NDArray[np.float32], lanes: int) -> None:
        if not policy.state_size:
            raise InvalidArgument("state: the policy is not recurrent; leave it out")
        if state.shape != (lanes, policy.state_size):
            raise InvalidArgument(f"state: shape {list(state.shape)}, expected {[lanes, policy.state_size]}")
        check_finite("state", state)

    def _keeps_state(self, asked: ActInput, version: str) -> bool:
        """Whether a request of a session needs its state.

        Ends the session if all of its environments begin with a version that has no state.
        """
        if asked.session in self._sessions and not _all_begin(asked):
            return True
        if self.policy(version).state_size:
            return True
        self._sessions.end(asked.session)
        return False

    async def _act_in_session(self, asked: ActInput, version: str) -> ActResult:
        key, lanes, now = asked.session, len(asked.observation), self._clock()
        if asked.state is not None:
            raise InvalidArgument("state: the session has it; leave one of the two out")
        if _all_begin(asked):
            size = self.policy(version).state_size
            kept = self._sessions.begin(key, version, lanes, size, now, asked.owner)
        else:
            kept = self._sessions.take(key, lanes, now)
        return await self._step(asked, kept)

    async def _step(self, asked: ActInput, kept: KeptState) -> ActResult:
        state, next_state = kept.state, None
        if asked.begins is not None and asked.begins.any():
            state = np.where(asked.begins[:, np.newaxis], np.float32(0.0), state)
        try:
            batcher = self._batcher(kept.version)
            acted = await batcher.act(BatchItem(asked.observation, state, asked.random, asked.deadline))
            next_state = acted.next_state
            return acted
        finally:
            self._sessions.put(asked.session, kept, next_state, self._clock())

    def end_session(self, session: str) -> None:
        """Ends a session; has no effect if there is none."""
        self._sessions.end(session)

    def _batcher(self, version: str) -> Batcher:
        if version not in self._batchers:
            named = NamedResource("version", version[:64])
            raise NotFound(f"version {named.name} is not loaded", resource=named)
        return self._batchers[version]

    def _shadow(self, asked: ActInput, acted: ActResult) -> None:
        """Has the shadow version compute what was answered, if there is one and it keeps up."""
        other = self.record.comparison
        if other is None or not other.shadow or asked.random or acted.version != self.record.current:
            return
        if len(self._shadows) < self._limits.batch.queued_rows:
            task = asyncio.get_running_loop().create_task(self._compare(self._batcher(other.version), asked, acted))
            self._shadows.add(task)
            task.add_done_callback(self._shadows.discard)

    async def _compare(self, batcher: Batcher, asked: ActInput, acted: ActResult) -> None:
        try:
            found = await batcher.act(BatchItem(asked.observation))
        except PodraceError:
            return
        gaps = np.abs(found.action.astype(np.float64) - acted.action).reshape(len(acted.action), -1)
        different = int((gaps > SAME_ACTION).any(axis=1).sum())
        metrics.SHADOW_ROWS.labels("yes").inc(different)
        metrics.SHADOW_ROWS.labels("no").inc(len(acted.action) - different)

    # --- versions ------------------------------------------------------------------------------------------------

    def wants(self, version: str) -> bool:
        """Whether an offered version is to be loaded and examined."""
        return versions.wanted(self.record, version)

    async def offer(self, model: bytes, version: str = "") -> Change:
        """Loads a policy, has the gate examine it, and lets it serve if it is accepted.

        Args:
            model: The ONNX file.
            version: Its name; empty: that of its checkpoints.

        Raises:
            Aborted: Another version serves than the one that it was compared with; it is offered again later.
            PodraceError: It cannot be loaded or examined.
        """
        policy = await self._loaded(model, version)
        before = self.record.current
        verdict = await self._judge(policy)
        if self.record.current != before:
            raise Aborted(
                f"version {policy.version[:12]} was compared with {before[:12]}, and {self.record.current[:12]} serves"
                " now: it is examined again"
            )
        change = versions.offer(self.record, policy.version, verdict)
        return self._apply(change, policy)

    async def _judge(self, policy: PolicyVersion) -> GateVerdict:
        if not self.record.current:
            return GateVerdict(True, "the first version")
        try:
            policy.check_same_spaces(self.current)
        except FailedPrecondition as error:
            return GateVerdict(False, error.message)
        return await self._gate.judge(policy, self.current) if self._gate else ACCEPTED

    async def pin(self, model: bytes, version: str = "") -> Change:
        """Loads a policy, as `offer`, and lets it serve until `follow` is called; the gate does not apply.

        Raises:
            PodraceError: It cannot be loaded, or acts in other spaces.
        """
        policy = await self._replacement(model, version)
        return self._apply(versions.pin(self.record, policy.version), policy)

    def follow(self) -> Change:
        """Accepts offers again."""
        return self._apply(versions.follow(self.record))

    def roll_back(self, from_version: str) -> Change:
        """Lets the previous version serve; raises as `versions.roll_back`."""
        return self._apply(versions.roll_back(self.record, from_version))

    async def compare(self, model: bytes, version: str = "", *, share: float, shadow: bool) -> Change:
        """Loads a second policy, as `offer`, which answers a share of the requests or shadows all of them.

        Raises:
            FailedPrecondition: It is recurrent and would shadow, or no other version serves.
            PodraceError: As `pin`.
        """
        policy = await self._replacement(model, version)
        if shadow and (policy.state_size or self.current.state_size):
            raise FailedPrecondition("a recurrent policy cannot shadow another one: use a share")
        change = versions.compare(self.record, Comparison(policy.version, share, shadow))
        return self._apply(change, policy)

    def end_comparison(self) -> Change:
        """Removes the second version."""
        return self._apply(versions.end_comparison(self.record))

    async def _replacement(self, model: bytes, version: str) -> PolicyVersion:
        policy = await self._loaded(model, version)
        if self.record.current:
            policy.check_same_spaces(self.current)
        return policy

    async def _loaded(self, model: bytes, version: str) -> PolicyVersion:
        """Loads a policy, and computes once so that its first request is not slow."""

        def load() -> PolicyVersion:
            policy = PolicyVersion(model, version)
            policy.compute(
                np.zeros((1, *policy.observation_shape), policy.observation_type),
                np.zeros((1, policy.state_size), np.float32),
                outputs=policy.samples,
            )
            return policy

        return await asyncio.to_thread(load)

    def _apply(self, change: Change, policy: PolicyVersion | None = None) -> Change:
        """Makes a record the valid one: the one place that changes which version serves."""
        if policy and policy.version in change.record.needed and policy.version not in self._batchers:
            self._batchers[policy.version] = Batcher(policy, self._limits.batch, self._executor, self._clock)
        before, self.record = self.record.current, change.record
        if before != self.record.current:
            if before:
                metrics.SERVES.remove(before)
            metrics.SERVES.labels(self.record.current).set(1)
        _log.info("served version changed", serves=self.record.current, reason=change.reason)
        self.tidy()
        return change

    def tidy(self) -> None:
        """Ends sessions that have expired, and unloads versions that nothing needs."""
        self._sessions.expire(self._clock())
        needed = set(self.record.needed)
        kept = needed | self._sessions.versions()
        for version in [known for known in self._batchers if known not in needed]:
            if version in kept and len(self._batchers) > self._limits.maximum_versions:
                ended = self._sessions.end_of_version(version)
                _log.warning("sessions of an old version were ended", version=version, sessions=ended)
                kept.discard(version)
            if version not in kept:
                # Requests that it has still to answer hold it.
                del self._batchers[version]
        metrics.SESSIONS.set(len(self._sessions))
        metrics.VERSIONS.set(len(self._batchers))

    async def close(self) -> None:
        """Refuses what waits and ends the thread."""
        for batcher in self._batchers.values():
            batcher.close()
        await cancel_all(*self._shadows)
        self._executor.shutdown(cancel_futures=True)


def _all_begin(asked: ActInput) -> bool:
    return asked.begins is not None and bool(asked.begins.all())
