"""Continuous training on a mesh with canned answers: what is decided, written down, and gone on with after a kill."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from podrace.checkpoint.v1.checkpoint_pb2 import Evaluation
from podrace.cli import continuous_run, continuous_scores, continuous_state, session
from podrace.cli.continuous_dataset import LocalSource
from podrace.cli.continuous_run import Keeper, Plan
from podrace.cli.continuous_state import Diary, Memory
from podrace.cli.interrupts import Interrupts
from podrace.cli.options import Settings
from podrace.cli.specification import load
from podrace.errors import DataLoss, FailedPrecondition, Unavailable
from podrace.orchestrator.v1 import orchestrator_pb2 as pb

SPEC = """
name = "race"
seed = 3
[environment]
id = "stocks"
[environment.options]
path = "data"
[algorithms.ppo]
[objective]
environment_steps = 1000
[evaluation.options]
split = "validation"
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REMOTE_SECONDS", 0.2)


class KilledError(BaseException):
    """Stands for `kill -9`: nothing that follows is done."""


@dataclass
class Rig:
    """A keeper as often as it is started, on one mesh, one diary and one dataset."""

    folder: Path
    mesh: Any
    scores: dict[str, float] = field(default_factory=dict)
    """Mean return by agent id; 1 if it is not named."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why the pod's own evaluator scored, by agent id."""
    scored: list[tuple[str, str]] = field(default_factory=list)
    """Agent and request of every evaluation."""
    lines: list[str] = field(default_factory=list)
    changes: int = 0
    killed_at: int = 0
    """The change at which it is killed; 0: never."""
    written: bool = False
    """Whether that change is on the disk by then."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def write(self, text: str) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / "prices").write_text(text)

    def keep(self, until: Callable[[Memory], bool], *, seconds: float = 10.0) -> Memory:
        """Runs it until its diary says what is waited for; started anew when it is killed."""
        while True:
            try:
                return asyncio.run(self._keep(until, seconds))
            except KilledError:
                self.killed_at = 0

    async def _keep(self, until: Callable[[Memory], bool], seconds: float) -> Memory:
        home = self.folder / "home"
        plan = Plan(load(self.folder / "race.toml", ()), "data", 0.01, home / "continuous" / "race")
        plan.versions.mkdir(parents=True, exist_ok=True)
        diary = Diary.open(plan.folder, name="race", reference=str(self.data))
        task = asyncio.current_task()
        assert task is not None
        stop, settings = asyncio.Event(), Settings(home, self.mesh.address, debug=False, as_json=False)
        keeper = Keeper(
            settings,
            plan,
            LocalSource(self.data),
            diary,
            Interrupts(task),
            stop,
            tell=self.lines.append,  # type: ignore[arg-type]
        )
        change = diary.change

        def counted(**changes: Any) -> None:
            self.changes += 1
            if self.changes == self.killed_at and not self.written:
                raise KilledError
            change(**changes)
            if self.changes == self.killed_at:
                raise KilledError
            if until(diary.memory):
                stop.set()

        diary.change = counted  # type: ignore[method-assign]
        if until(diary.memory):
            stop.set()
        async with asyncio.timeout(seconds):
            await keeper.run()
        return diary.memory

    def created(self) -> list[Any]:
        return [request.spec for request in self.mesh.known.asked(pb.CreateTournamentRequest)]


@pytest.fixture
def rig(tmp_path: Path, mesh: Any, known: Any, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.chdir(tmp_path)
    known.tournaments, known.pods = [], []
    (tmp_path / "race.toml").write_text(SPEC)
    made = Rig(tmp_path, mesh)

    async def evaluated(clients: Any, tournament: Any, checkpoint: Any, **options: Any) -> Evaluation:
        made.scored.append((checkpoint.agent_id, options["request_id"]))
        assert options["options"]["split"] == "validation"
        assert str(options["episodes"]) == "64"
        if made.scores.get(checkpoint.agent_id) == -1.0:
            raise FailedPrecondition("evaluation failed: another shape")
        mean = made.scores.get(checkpoint.agent_id, 1.0)
        fault = made.faults.get(checkpoint.agent_id, "")
        return Evaluation(mean_return=mean, variance=64.0, episodes=64, seed=options["seed"], evaluator_fault=fault)

    monkeypatch.setattr(continuous_scores, "evaluated", evaluated)
    monkeypatch.setattr(continuous_run, "RETRY_SECONDS", 0.01)
    made.write("one")
    return made


def decided(count: int) -> Callable[[Memory], bool]:
    return lambda memory: len(memory.history) >= count


def champion_of(memory: Memory) -> str:
    assert memory.champion is not None
    return memory.champion.agent_id


def test_the_first_version_gives_the_champion_and_the_next_one_starts_from_it(rig: Rig) -> None:
    first = rig.keep(decided(1))
    assert [entry.verdict for entry in first.history] == ["first"]
    assert champion_of(first).endswith("-v1-abc123-a2")
    rig.write("two")
    second = rig.keep(decided(2))
    specs = rig.created()
    assert [spec.evolution.ancestor_agent_id for spec in specs] == ["", champion_of(first)]
    assert [spec.seed for spec in specs] == [3, 4]
    paths = [Path(spec.environment.options["path"]) for spec in specs]
    assert paths[0] != paths[1]
    assert (paths[1] / "prices").read_text() == "two"
    # Equals: the incumbent stays, with its score on the new slice.
    assert second.history[-1].verdict == "kept"
    assert champion_of(second) == champion_of(first)
    assert second.champion_version == second.history[-1].digest
    assert [agent for agent, _ in rig.scored[1:]] == [specs[1].name + "-abc123-a2", champion_of(first)]


def test_only_a_better_one_becomes_champion_and_the_numbers_are_kept(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.scores[f"race-{first.watch_id}-v2-abc123-a2"] = 2.5  # the error of the difference is sqrt(2)
    rig.write("two")
    second = rig.keep(decided(2))
    entry = second.history[-1]
    assert (entry.verdict, entry.difference) == ("replaced", 1.5)
    assert entry.standard_error == pytest.approx(2**0.5)
    assert entry.incumbent is not None
    assert entry.incumbent.agent_id == champion_of(first)
    assert champion_of(second) == f"race-{first.watch_id}-v2-abc123-a2"
    assert second.champion is not None
    assert second.champion.score is not None
    assert second.champion.score.mean_return == 2.5


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


def test_an_incumbent_that_cannot_be_scored_stays(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.scores[champion_of(first)] = -1.0
    rig.write("two")
    second = rig.keep(decided(2))
    assert second.history[-1].verdict == "kept"
    assert "another shape" in second.history[-1].reason
    assert second.champion == first.champion
    assert second.champion_version == first.champion_version


def test_nobody_is_replaced_by_a_number_of_another_kind(rig: Rig) -> None:
    first = rig.keep(decided(1))
    rig.faults[champion_of(first)] = "evaluator python:mine:score: it hung"
    rig.scores[champion_of(first)] = -1000.0
    rig.write("two")
    second = rig.keep(decided(2))
    assert second.history[-1].verdict == "kept"
    assert "one of the two was scored by its pod's own evaluator: evaluator python:mine" in second.history[-1].reason
    assert second.champion == first.champion


def test_what_may_pass_is_tried_again_and_told_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failures = continuous_run.session.open_clients, [Unavailable("no mesh"), Unavailable("no mesh")]

    def opening(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*arguments, **options)

    monkeypatch.setattr(continuous_run.session, "open_clients", opening)
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
        (folder / continuous_state.FILE).write_text(text)
        with pytest.raises(DataLoss, match="move it away"):
            continuous_state.read(folder)


# --- commands ----------------------------------------------------------------------------------------------------


def test_status_tells_where_it_stands_and_json_everything(rig: Rig, type_: Any) -> None:
    assert "nothing is trained continuously" in type_("continuous", "status", "--home", "home").out
    memory = rig.keep(decided(1))
    text = type_("continuous", "status", "--home", "home").out
    for word in ("not running", str(rig.data), champion_of(memory), "1.0 ± 1.0", "first", memory.champion_version[:12]):
        assert word in text
    (listed,) = type_("continuous", "status", "--home", "home", "--json").json
    one = type_("continuous", "status", "race", "--home", "home", "--json").json
    assert one == listed
    assert (one["state"], one["pid"], one["champion"]["agent_id"]) == ("not running", None, champion_of(memory))
    assert one["history"][0]["challenger"]["score"] == {"mean_return": 1.0, "standard_error": 1.0, "episodes": 64}
    arrived = datetime.fromisoformat(one["history"][0]["arrive_time"])
    assert arrived.timestamp() == pytest.approx(memory.history[0].arrive_time, abs=0.001)


def test_stopping_what_does_not_run_does_no_harm(rig: Rig, type_: Any) -> None:
    assert type_("continuous", "stop", "--home", "home").code == 2
    rig.keep(decided(1))
    answer = type_("continuous", "stop", "--home", "home")
    assert (answer.code, answer.out) == (0, "continuous race is not running\n")
    assert (
        "unknown continuous training 'rice'; did you mean 'race'?"
        in type_("continuous", "stop", "rice", "--home", "home").err
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gone.toml", "--watch", "data"], "gone.toml: cannot be read"),
        (["race.toml", "--watch", "other"], "no option of environment"),
        (["race.toml", "--watch", "data", "--set", "environment.optoins.a=1"], "unknown key 'optoins'"),
        (["race.toml", "--watch", "data", "--poll", "soon"], "--poll soon: expected a duration"),
        (["race.toml", "--watch", "data", "--poll", "0s"], "--poll 0s: expected a duration"),
        (["race.toml", "--watch", "data", "--name", "a/b"], "--name a/b: expected"),
        (["race.toml", "--watch", "nowhere", "--set", 'environment.options.path="nowhere"'], "there is no such file"),
        (["race.toml", "--watch", "data", "--orchestrator", "unix:/nowhere"], "--orchestrator unix:/nowhere"),
    ],
)
@pytest.mark.parametrize("foreground", [True, False])
@pytest.mark.usefixtures("impatient")
def test_a_start_that_cannot_work_fails_at_once_in_a_line(
    rig: Rig, type_: Any, arguments: list[str], line: str, foreground: bool
) -> None:
    answer = type_("continuous", "start", *arguments, "--home", "home", *["--foreground"] * foreground)
    assert answer.code in (1, 2)
    assert line in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not list(rig.folder.glob("home/continuous/*/*.json"))


def test_a_start_on_other_data_fails_in_the_foreground(rig: Rig, type_: Any) -> None:
    rig.keep(decided(1))
    (rig.folder / "other").mkdir()
    answer = type_(
        "continuous",
        "start",
        "race.toml",
        "--watch",
        "other",
        "--set",
        "environment.options.path=other",
        "--home",
        "home",
    )
    assert answer.code == 1
    assert "choose another --name" in answer.err
    assert json.loads((rig.folder / "home/continuous/race/state.json").read_text())["reference"] == str(rig.data)
