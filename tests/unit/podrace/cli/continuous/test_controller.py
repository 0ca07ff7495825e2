"""Which versions are trained on, and how failures are handled."""

from pathlib import Path
from typing import Any

import pytest
from continuous_rig import Rig, champion_of, decided

from podrace.cli.continuous import controller
from podrace.cli.continuous.journal import JournalState
from podrace.errors import Unavailable


def test_only_the_newest_waiting_version_is_used_and_the_others_are_recorded_as_skipped(rig: Rig) -> None:
    left = ["three", "two"]

    def until(state: JournalState) -> bool:
        # The first while the tournament runs, the second when the first is waiting.
        if state.work is not None and len(left) == (1 if state.pending else 2):
            rig.write(left.pop())
        return len(state.history) == 1

    rig.mesh.known.ends_by_itself = False
    waiting = rig.keep(until)
    assert waiting.pending is not None
    skipped = waiting.history[0]
    assert (skipped.verdict, skipped.number) == ("skipped", 0)
    assert waiting.pending.digest[:12] in skipped.reason
    assert (Path(waiting.pending.path) / "prices").read_text() == "three"
    assert len(list((rig.folder / "home/continuous/race/versions").iterdir())) == 2, "in work, and waiting"


def test_a_version_is_not_trained_on_again_when_the_data_returns_to_it(rig: Rig) -> None:
    rig.keep(decided(1))
    rig.write("two")
    rig.keep(decided(2))
    rig.write("one")
    with pytest.raises(TimeoutError):
        rig.keep(decided(3), seconds=0.5)
    assert len(rig.created()) == 2


def test_a_failed_tournament_keeps_the_champion_and_is_retried_by_the_next_start(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.mesh.known.end_state = "FAILED"
    rig.write("two")
    failed = rig.keep(decided(2))
    assert failed.history[-1].verdict == "failed"
    assert "failed: " in failed.history[-1].reason
    assert champion_of(failed) == champion_of(first)
    rig.mesh.known.end_state = "COMPLETED"
    assert rig.keep(decided(3)).history[-1].verdict == "kept"
    assert [spec.name[-2:] for spec in rig.created()] == ["v1", "v2", "v3"]


@pytest.mark.long
def test_a_failed_version_is_not_retried_by_the_same_process(rig: Rig) -> None:
    rig.mesh.known.end_state, left = "FAILED", ["one"]

    def until(state: JournalState) -> bool:
        if len(state.history) == 1 and left:
            rig.write(left.pop())  # the same data again: it is read and already decided
        return len(state.history) == 2

    with pytest.raises(TimeoutError):
        rig.keep(until, seconds=1.0)
    assert len(rig.created()) == 1


def test_a_temporary_failure_is_retried_and_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failures = controller.session.open_client, [Unavailable("no mesh"), Unavailable("no mesh")]

    def opening(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*arguments, **options)

    monkeypatch.setattr(controller.session, "open_client", opening)
    seen: list[str] = []

    def until(state: JournalState) -> bool:
        seen.append(state.trouble)
        return len(state.history) == 1

    assert rig.keep(until).trouble == ""
    assert "no mesh" in seen
    assert rig.lines.count("work: no mesh") == 1


def test_missing_data_is_reported_and_waited_for(rig: Rig) -> None:
    rig.keep(decided(1))
    (rig.data / "prices").unlink()
    away = rig.keep(lambda state: state.trouble != "")
    assert away.trouble == "data: there is no data at the moment"
    rig.write("two")
    assert rig.keep(decided(2)).trouble == ""


def test_a_version_can_set_its_splits_and_a_malformed_options_file_fails_only_that_version(rig: Rig) -> None:
    (rig.data / "options.toml").write_text("train_end = 2026-01-01")
    rig.keep(decided(1))
    assert rig.created()[0].environment.options["train_end"] == "2026-01-01"
    (rig.data / "options.toml").write_text("train_end = ")
    failed = rig.keep(decided(2))
    assert failed.history[-1].verdict == "failed"
    assert "options.toml: not valid TOML" in failed.history[-1].reason
