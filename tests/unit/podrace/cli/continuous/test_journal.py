"""The journal: training resumes from it after a kill, and retries steps that could not be recorded."""

from pathlib import Path
from typing import Any

import pytest
from continuous_rig import Rig, champion_of, decided

from podrace.cli.continuous import journal
from podrace.cli.continuous.journal import EnsembleMember, Journal, ScoredAgent, read_journal
from podrace.errors import DataLoss, FailedPrecondition
from podrace.orchestrator.v1 import orchestrator_pb2 as pb


def changes_of_a_whole_run(rig: Rig) -> int:
    rig.keep(decided(1))
    rig.write("two")
    rig.keep(decided(2))
    return rig.changes


@pytest.mark.long
@pytest.mark.parametrize("written", [False, True])
def test_after_a_kill_at_any_step_each_version_is_trained_on_and_decided_once(rig: Rig, written: bool) -> None:
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
        state = rig.keep(decided(2))
        names = [spec.name for spec in rig.created()]
        assert names == [f"race-{state.watch_id}-v1", f"race-{state.watch_id}-v2"], f"killed at step {step}"
        assert [(entry.number, entry.verdict) for entry in state.history] == [(1, "first"), (2, "kept")]
        assert len({request for _, request in rig.scored}) == 3, "a repeated request returns the same evaluation"
        assert champion_of(state) == f"race-{state.watch_id}-v1-abc123-a2"


def test_a_cancelled_tournament_is_resumed(rig: Rig, canned: Any) -> None:
    rig.mesh.known.ends_by_itself = False
    stopped = rig.keep(lambda state: state.work is not None and state.work.tournament_id != "")
    (cancelled,) = rig.mesh.known.asked(pb.CancelTournamentRequest)
    assert cancelled.reason == "continuous training was stopped"
    assert stopped.work is not None
    rig.mesh.known.tournaments[0].state = canned.tournament("x", "CANCELLED").state
    rig.mesh.known.ends_by_itself, rig.mesh.known.end_state = True, "COMPLETED"
    state = rig.keep(decided(1))
    (resumed,) = rig.mesh.known.asked(pb.ResumeTournamentRequest)
    assert resumed.tournament_id == stopped.work.tournament_id == state.history[0].tournament_id
    assert len(rig.created()) == 1


def test_training_continues_after_the_journal_could_not_be_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    change, full = Journal.change, [True, True, True]

    def changing(self: Journal, **changes: Any) -> None:
        if full:
            full.pop()
            raise FailedPrecondition("no space left on the device")
        change(self, **changes)

    monkeypatch.setattr(Journal, "change", changing)
    assert rig.keep(decided(1)).history[0].verdict == "first"
    assert "watch: no space left on the device" in rig.lines


@pytest.mark.parametrize("lost", ["pending", "history"])
def test_a_step_that_could_not_be_recorded_is_retried(rig: Rig, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    rig.mesh.known.end_state = "FAILED"
    change, lost_changes = Journal.change, list[dict[str, Any]]()

    def changing(self: Journal, **changes: Any) -> None:
        if "work" in changes and lost in changes and not lost_changes:
            lost_changes.append(changes)
            raise FailedPrecondition("no space left on the device")
        change(self, **changes)

    monkeypatch.setattr(Journal, "change", changing)
    assert [entry.verdict for entry in rig.keep(decided(1)).history] == ["failed"]
    assert lost_changes
    assert "work: no space left on the device" in rig.lines
    assert sum(" failed: " in line for line in rig.lines) == 1


def test_a_journal_of_other_data_is_refused_and_a_damaged_one_is_reported(rig: Rig) -> None:
    rig.keep(decided(1))
    folder = rig.folder / "home/continuous/race"
    with pytest.raises(FailedPrecondition, match="choose another --name"):
        Journal.open(folder, name="race", reference="elsewhere")
    for text in ("{", "[]", '{"name": "race"}', '{"nmae": 3}'):
        (folder / journal.FILE).write_text(text)
        with pytest.raises(DataLoss, match="move it away"):
            read_journal(folder)


def test_the_hyperparameters_of_a_champion_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    values = {"learning_rate": 0.001, "hidden_sizes": [64, 64], "activation": "relu", "normalize_rewards": True}
    member = EnsembleMember("t-a1", "feed", {"gamma": 0.9})
    champion = ScoredAgent("t-a2", "t", "beef", members=(member,), hyperparameters=values)
    Journal.open(tmp_path, name="race", reference="prices").change(champion=champion)
    state = read_journal(tmp_path)
    assert state is not None
    assert state.champion == champion
