"""Which versions are trained on, and what becomes of those that cannot be."""

from pathlib import Path
from typing import Any

import pytest
from continuous_rig import Rig, champion_of, decided

from podrace.cli.continuous import run
from podrace.cli.continuous.state import Memory
from podrace.errors import Unavailable


def test_of_the_versions_that_wait_the_newest_is_taken_and_the_others_are_named(rig: Rig) -> None:
    left = ["three", "two"]

    def until(memory: Memory) -> bool:
        # The first while the tournament runs, the second when the first is waiting.
        if memory.work is not None and len(left) == (1 if memory.pending else 2):
            rig.write(left.pop())
        return len(memory.history) == 1

    rig.mesh.known.ends_by_itself = False
    waiting = rig.keep(until)
    assert waiting.pending is not None
    skipped = waiting.history[0]
    assert (skipped.verdict, skipped.number) == ("skipped", 0)
    assert waiting.pending.digest[:12] in skipped.reason
    assert (Path(waiting.pending.path) / "prices").read_text() == "three"
    assert len(list((rig.folder / "home/continuous/race/versions").iterdir())) == 2, "in work, and waiting"


def test_data_that_goes_back_to_an_earlier_version_is_not_trained_on_again(rig: Rig) -> None:
    rig.keep(decided(1))
    rig.write("two")
    rig.keep(decided(2))
    rig.write("one")
    with pytest.raises(TimeoutError):
        rig.keep(decided(3), seconds=0.5)
    assert len(rig.created()) == 2


def test_a_tournament_that_fails_leaves_the_champion_and_is_tried_again_by_the_next_start(rig: Rig) -> None:
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


def test_a_failed_version_is_not_tried_again_and_again(rig: Rig) -> None:
    rig.mesh.known.end_state, left = "FAILED", ["one"]

    def until(memory: Memory) -> bool:
        if len(memory.history) == 1 and left:
            rig.write(left.pop())  # the same once more: it is read, and known
        return len(memory.history) == 2

    with pytest.raises(TimeoutError):
        rig.keep(until, seconds=1.0)
    assert len(rig.created()) == 1


def test_what_may_pass_is_tried_again_and_told_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failures = run.session.open_client, [Unavailable("no mesh"), Unavailable("no mesh")]

    def opening(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*arguments, **options)

    monkeypatch.setattr(run.session, "open_client", opening)
    seen: list[str] = []

    def until(memory: Memory) -> bool:
        seen.append(memory.trouble)
        return len(memory.history) == 1

    assert rig.keep(until).trouble == ""
    assert "no mesh" in seen
    assert rig.lines.count("work: no mesh") == 1


def test_data_that_is_away_is_told_and_waited_for(rig: Rig) -> None:
    rig.keep(decided(1))
    (rig.data / "prices").unlink()
    away = rig.keep(lambda memory: memory.trouble != "")
    assert away.trouble == "data: there is nothing at the moment"
    rig.write("two")
    assert rig.keep(decided(2)).trouble == ""


def test_a_version_says_where_its_splits_lie_and_a_bad_word_of_it_costs_that_version_alone(rig: Rig) -> None:
    (rig.data / "options.toml").write_text("train_end = 2026-01-01")
    rig.keep(decided(1))
    assert rig.created()[0].environment.options["train_end"] == "2026-01-01"
    (rig.data / "options.toml").write_text("train_end = ")
    failed = rig.keep(decided(2))
    assert failed.history[-1].verdict == "failed"
    assert "options.toml: not valid TOML" in failed.history[-1].reason
