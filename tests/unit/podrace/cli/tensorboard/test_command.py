import sys
from pathlib import Path
from typing import Any

import pytest

from podrace.cli.tensorboard.event_files import EventFiles
from podrace.errors import DataLoss, InvalidArgument
from podrace.leaderboard.v1 import leaderboard_pb2 as board_pb

NAME = "cartpole-abc123"

pytest.importorskip("tensorboard")


def read(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Values by run and tag, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        events = EventAccumulator(str(run)).Reload()
        found[run.name] = {
            tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
    return found


@pytest.fixture
def race(mesh: Any) -> Any:
    for number in range(3):
        agent = board_pb.Agent(agent_id=f"{NAME}-a{number}", tournament_id=NAME, number=number, algorithm="ppo")
        agent.hyperparameters.update({"learning_rate": 0.001 * (number + 1), "hidden_sizes": [64, 64]})
        mesh.known.lineage.append(agent)
    for entry in mesh.known.submissions:
        entry.verdict = board_pb.VERDICT_ACCEPTED
        entry.agent_environment_steps = entry.environment_steps
    return mesh


def test_tensorboard_reads_the_scores_of_every_agent_and_of_the_champion(type_: Any, race: Any, tmp_path: Path) -> None:
    answer = type_("tensorboard", "latest", "board", "--orchestrator", race.address)
    assert answer.code == 0, answer.err
    assert "tensorboard --logdir board" in answer.out
    found = read(tmp_path / "board" / NAME)
    assert set(found) == {"a0", "a1", "a2", "champion"}
    for entry in race.known.submissions:
        run = found[entry.agent_id.rpartition("-")[2]]
        assert (entry.agent_environment_steps, entry.score) in run["eval/mean_reward"]
    assert found["champion"]["eval/mean_reward"][-1][1] == max(one.score for one in race.known.submissions)


def test_a_later_call_adds_what_is_new_and_nothing_twice(type_: Any, race: Any, tmp_path: Path) -> None:
    arguments = ("tensorboard", "latest", "board", "--orchestrator", race.address, "--json")
    every = list(race.known.submissions)
    race.known.submissions = every[:-1]
    first = type_(*arguments).json
    race.known.submissions = every
    second = type_(*arguments).json
    assert 0 < second["values"] < first["values"]
    assert type_(*arguments).json["values"] == 0
    scores = [points for tags in read(tmp_path / "board" / NAME).values() for points in tags.values()]
    assert all(len(points) == len(set(points)) for points in scores)


def test_the_progress_of_training_is_written_while_the_tournament_is_followed(
    type_: Any, race: Any, tmp_path: Path
) -> None:
    race.known.pods[0].progress.training_return = 210.0
    answer = type_("tensorboard", "latest", "board", "--follow", "--orchestrator", race.address)
    assert answer.code == 0, answer.err
    (pod,) = race.known.pods
    found = read(tmp_path / "board" / NAME)[pod.agent_id.rpartition("-")[2]]
    assert found["rollout/ep_rew_mean"] == [(pod.progress.environment_steps, 210.0)]
    assert "eval/mean_reward" in found


def test_hyperparameters_are_written_once_for_each_run(type_: Any, race: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    for _ in range(2):
        type_("tensorboard", "latest", "board", "--orchestrator", race.address)
    events = EventAccumulator(str(tmp_path / "board" / NAME / "a1")).Reload()
    content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = parse_session_start_info_plugin_data(content).hparams
    assert values["learning_rate"].number_value == 0.002
    assert values["algorithm"].string_value == "ppo"
    assert values["hidden_sizes"].string_value == "[64, 64]"
    assert len(events.Tensors("_hparams_/session_start_info")) == 1


def test_without_the_package_the_command_says_what_to_install(
    type_: Any, race: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    answer = type_("tensorboard", "latest", "board", "--orchestrator", race.address)
    assert answer.code == 1
    assert "pip install 'tensorboard>=2.21'" in answer.err


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is not the id"):
        EventFiles(tmp_path, "../up")
    with pytest.raises(InvalidArgument, match="is not the id"):
        EventFiles(tmp_path, NAME).describe("../up", {})


def test_a_damaged_record_of_what_was_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "podrace.json").write_text("[]")
    with pytest.raises(DataLoss, match=r"podrace\.json: damaged; remove its folder"):
        EventFiles(tmp_path, NAME)
