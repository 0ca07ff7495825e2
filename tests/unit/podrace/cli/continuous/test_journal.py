"""What is written down: gone on with after a kill, and waited for where it cannot be written."""

from typing import Any

import pytest
from continuous_rig import Rig, champion_of, decided

from podrace.cli.continuous import state
from podrace.cli.continuous.state import Diary
from podrace.errors import DataLoss, FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def changes_of_a_whole_run(rig: Rig) -> int:
    rig.keep(decided(1))
    rig.write("two")
    rig.keep(decided(2))
    return rig.changes


@pytest.mark.parametrize("written", [False, True])
def test_killed_at_any_step_it_trains_each_version_once_and_decides_once(rig: Rig, written: bool) -> None:
    steps = changes_of_a_whole_run(rig)
    assert steps >= 8
    for step in range(1, steps + 1):
        rig.mesh.known.tournaments.clear()
        rig.mesh.known.requests.clear()
        rig.scored.clear()
        for path in sorted((rig.folder / "home").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        rig.write("one")
        rig.changes, rig.killed_at, rig.written = 0, step, written
        rig.keep(decided(1))
        rig.write("two")
        memory = rig.keep(decided(2))
        names = [spec.name for spec in rig.created()]
        assert names == [f"race-{memory.watch_id}-v1", f"race-{memory.watch_id}-v2"], f"killed at step {step}"
        assert [(entry.number, entry.verdict) for entry in memory.history] == [(1, "first"), (2, "kept")]
        assert len({request for _, request in rig.scored}) == 3, "an evaluation asked for again is the same one"
        assert champion_of(memory) == f"race-{memory.watch_id}-v1-abc123-a2"


def test_a_tournament_that_was_stopped_goes_on(rig: Rig, canned: Any) -> None:
    rig.mesh.known.ends_by_itself = False
    stopped = rig.keep(lambda memory: memory.work is not None and memory.work.tournament_id != "")
    (cancelled,) = rig.mesh.known.asked(pb.CancelTournamentRequest)
    assert cancelled.reason == "continuous training was stopped"
    assert stopped.work is not None
    rig.mesh.known.tournaments[0].state = canned.tournament("x", "CANCELLED").state
    rig.mesh.known.ends_by_itself, rig.mesh.known.end_state = True, "COMPLETED"
    memory = rig.keep(decided(1))
    (resumed,) = rig.mesh.known.asked(pb.ResumeTournamentRequest)
    assert resumed.tournament_id == stopped.work.tournament_id == memory.history[0].tournament_id
    assert len(rig.created()) == 1


def test_a_diary_that_cannot_be_written_ends_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    change, full = Diary.change, [True, True, True]

    def changing(self: Diary, **changes: Any) -> None:
        if full:
            full.pop()
            raise FailedPrecondition("no space left on the device")
        change(self, **changes)

    monkeypatch.setattr(Diary, "change", changing)
    assert rig.keep(decided(1)).history[0].verdict == "first"
    assert "watch: no space left on the device" in rig.lines


@pytest.mark.parametrize("lost", ["pending", "history"])
def test_a_step_that_cannot_be_written_down_is_taken_when_it_can(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    rig.mesh.known.end_state = "FAILED"
    change, lost_changes = Diary.change, list[dict[str, Any]]()

    def changing(self: Diary, **changes: Any) -> None:
        if "work" in changes and lost in changes and not lost_changes:
            lost_changes.append(changes)
            raise FailedPrecondition("no space left on the device")
        change(self, **changes)

    monkeypatch.setattr(Diary, "change", changing)
    assert [entry.verdict for entry in rig.keep(decided(1)).history] == ["failed"]
    assert lost_changes
    assert "work: no space left on the device" in rig.lines
    assert sum("came to nothing" in line for line in rig.lines) == 1


def test_a_diary_of_other_data_is_refused_and_a_damaged_one_is_told(rig: Rig) -> None:
    rig.keep(decided(1))
    folder = rig.folder / "home/continuous/race"
    with pytest.raises(FailedPrecondition, match="choose another --name"):
        Diary.open(folder, name="race", reference="elsewhere")
    for text in ("{", "[]", '{"name": "race"}', '{"nmae": 3}'):
        (folder / state.FILE).write_text(text)
        with pytest.raises(DataLoss, match="move it away"):
            state.read(folder)
