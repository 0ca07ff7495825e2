"""A mesh without processes for tests of the chaos program: both services answer from memory."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from chaos_faults import Fault

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc
from podrace.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from podrace.tournament.v1.tournament_pb2 import TOURNAMENT_STATE_RUNNING, Tournament

THREADS = 8
STEPS_PER_SECOND = 1000
WAIT_SECONDS = 5.0


class FakeTarget(
    leaderboard_pb2_grpc.LeaderboardServiceServicer,
    orchestrator_pb2_grpc.OrchestratorServiceServicer,
):
    """A target with one pod, which takes steps all the time. Faults do what the test says.

    with FakeTarget(folder, fault) as target:
        results = chaos(target, options, "")

    Attributes:
        candidates: What the leaderboard has; the test adds to it and takes from it.
        recorded: What the pod has recorded as accepted.
    """

    name = "fake"
    classes = (("kill", "learner"), ("stop", "learner"))

    def __init__(self, folder: Path, fault: Callable[["FakeTarget", Fault], None]) -> None:
        self._address, self._fault = f"unix:{folder}/fake.sock", fault
        self._begin = time.monotonic()
        self._changed, self._sent = threading.Condition(), set[str]()
        self.candidates: set[str] = {"first"}
        self.recorded: dict[str, float] = {}
        self.unprotected: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(THREADS))
        leaderboard_pb2_grpc.add_LeaderboardServiceServicer_to_server(self, self._server)
        orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self._address)
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop(grace=None).wait()

    def accept(self, candidate: str) -> None:
        """Accepts a candidate, and returns when every watcher has got it."""
        with self._changed:
            self.candidates.add(candidate)
            self._changed.notify_all()
            self._changed.wait_for(lambda: candidate in self._sent, timeout=WAIT_SECONDS)

    # --- Target -----------------------------------------------------------------------------------------------

    def start(self, specification: str) -> str:
        return "t"

    def channel(self, service: str) -> grpc.Channel:
        return grpc.insecure_channel(self._address)

    def inject(self, fault: Fault) -> None:
        self._fault(self, fault)

    def acknowledged(self) -> Mapping[str, float]:
        return self.recorded

    def finish(self) -> Mapping[str, int]:
        return {}

    # --- services ---------------------------------------------------------------------------------------------

    def WatchCandidates(self, request: Any, context: Any) -> Iterator[leaderboard_pb2.WatchCandidatesResponse]:
        sent: set[str] = set()
        context.add_callback(self._notify)
        while context.is_active():
            with self._changed:
                self._sent |= sent
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.candidates - sent or not context.is_active())
                new = self.candidates - sent
            for candidate in new:
                yield leaderboard_pb2.WatchCandidatesResponse(candidate={"candidate_id": candidate})
            sent.update(new)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def ListCandidates(self, request: Any, context: Any) -> leaderboard_pb2.ListCandidatesResponse:
        found = [leaderboard_pb2.Candidate(candidate_id=one) for one in sorted(self.candidates)]
        return leaderboard_pb2.ListCandidatesResponse(candidates=found)

    def GetTournament(self, request: Any, context: Any) -> orchestrator_pb2.GetTournamentResponse:
        steps = int((time.monotonic() - self._begin) * STEPS_PER_SECOND)
        tournament = Tournament(tournament_id="t", state=TOURNAMENT_STATE_RUNNING, environment_steps=steps)
        return orchestrator_pb2.GetTournamentResponse(tournament=tournament)

    def ListPods(self, request: Any, context: Any) -> orchestrator_pb2.ListPodsResponse:
        progress = orchestrator_pb2.Progress(environment_steps=1)
        return orchestrator_pb2.ListPodsResponse(pods=[orchestrator_pb2.Pod(pod_id="t-p0", progress=progress)])

    def ListEvents(self, request: Any, context: Any) -> orchestrator_pb2.ListEventsResponse:
        return orchestrator_pb2.ListEventsResponse()
