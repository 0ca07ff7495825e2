"""TensorBoard event files of a tournament that another command trains."""

import pytest
from homes import wait_for

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_a_running_tournament_is_followed_to_its_end(home):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training = home.start("train", str(home.spec("environment_steps = 600000", pool="maximum_pods = 1")))
    wait_for(home.roles, 60, what="the roles of a pod")
    folder = home.path.parent / "board"
    code, out, err = home.run("tensorboard", "latest", str(folder), "--follow")
    assert code == 0, err
    assert "tensorboard --logdir" in out
    assert training.wait(100) == 0
    (tournament,) = folder.iterdir()
    tags = {
        run.name: set(accumulator.EventAccumulator(str(run)).Reload().Tags()["scalars"])
        for run in tournament.iterdir()
        if run.is_dir()
    }
    assert tags["champion"] == {"eval/mean_reward"}
    assert {"eval/mean_reward", "rollout/ep_rew_mean", "time/fps", "train/n_updates"} <= set().union(*tags.values())
    assert not home.left_behind()
