"""Watches which candidates a leaderboard accepts, so that one that it loses later is missed."""

import contextlib
import threading
from types import TracebackType
from typing import Any, Self

import grpc
from chaos_target import Target

from podrace.leaderboard.v1 import leaderboard_pb2, leaderboard_pb2_grpc

WATCH_SECONDS = 20.0
"""Longest duration of one stream, because its connection may be half-open."""
REPEAT_SECONDS = 0.2


class CandidateWatch:
    """Receives every candidate as soon as the leaderboard has accepted it, in a thread.

    with CandidateWatch(target, tournament_id) as watch:
        ...
    lost = watch.accepted.keys() - kept

    Each stream begins with the first candidate: a database that was restored gives sequence numbers a second time.

    Attributes:
        accepted: When the leaderboard accepted each candidate, in seconds since 1970.
    """

    def __init__(self, target: Target, tournament_id: str) -> None:
        self.accepted: dict[str, float] = {}
        self._target = target
        self._request = leaderboard_pb2.WatchCandidatesRequest(tournament_id=tournament_id)
        self._ended = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._watch, name="candidates")

    def __enter__(self) -> Self:
        """Starts to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the watch."""
        self._ended.set()
        if self._call:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(REPEAT_SECONDS):
            with contextlib.suppress(grpc.RpcError, OSError, AssertionError):
                self._receive()

    def _receive(self) -> None:
        with self._target.channel("leaderboard") as channel:
            stub: Any = leaderboard_pb2_grpc.LeaderboardServiceStub(channel)
            self._call = stub.WatchCandidates(self._request, timeout=WATCH_SECONDS)
            # After the call exists: either it sees the end, or __exit__ sees the call.
            if self._ended.is_set():
                return
            for answer in self._call:
                found = answer.candidate
                self.accepted[found.candidate_id] = found.submit_time.ToNanoseconds() / 1e9
