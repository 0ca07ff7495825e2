"""TensorBoard event files of a tournament that another command trains."""

from pathlib import Path

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e
TAGS = {"eval/mean_reward", "rollout/ep_rew_mean", "time/fps", "train/n_updates"}


def written(folder: Path) -> set[str]:
    """The tags that event files have by now."""
    content = b"".join(path.read_bytes() for path in folder.rglob("events.*"))
    return {tag for tag in TAGS if tag.encode() in content}


@pytest.mark.timeout(300)
def test_a_running_tournament_is_followed_to_its_end(home):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training = home.start(
        "train", str(home.spec("environment_steps = 1000000000", sleeps=True, pool="maximum_pods = 1"))
    )
    wait_for(home.roles, 60, what="the roles of a pod")
    folder = home.path.parent / "board"
    following = home.start("tensorboard", "latest", str(folder), "--follow")
    wait_for(lambda: written(folder) == TAGS, 100, what="values of every kind")
    assert following.poll() is None
    # Met at once: the tournament ends as soon as the values are there.
    home.json("update", "latest", "--set", "objective.environment_steps=4096")
    out, err = following.communicate(timeout=100)
    assert following.returncode == 0, err
    assert "tensorboard --logdir" in out
    assert training.wait(100) == 0
    (tournament,) = folder.iterdir()
    tags = {
        run.name: set(accumulator.EventAccumulator(str(run)).Reload().Tags()["scalars"])
        for run in tournament.iterdir()
        if run.is_dir()
    }
    assert tags["champion"] == {"eval/mean_reward"}
    assert set().union(*tags.values()) >= TAGS
    assert not home.left_behind()
