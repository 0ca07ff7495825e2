"""Animations of the champion of a small tournament."""

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(400)
def test_an_episode_of_the_champion_is_drawn(home):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("pygame")
    spec = home.spec("environment_steps = 8192", pool="maximum_pods = 1")
    code, _, err = home.run("train", str(spec), seconds=200)
    assert code == 0, err
    file = home.path.parent / "episode.gif"
    facts = home.published("render", "latest", "--file", str(file), "--steps", "20", "--pictures", "6", seconds=200)
    assert facts["steps"] == facts["episode_return"] <= 20
    with image.open(file) as shown:
        # Pillow joins equal pictures.
        assert 1 < shown.n_frames <= facts["pictures"] <= 6
    video = pytest.importorskip("av")
    film = file.with_suffix(".mp4")
    home.json("render", "latest", "--file", str(film), "--steps", "20", "--pictures", "6", seconds=200)
    with video.open(str(film)) as shown:
        assert len(list(shown.decode(video=0))) == facts["pictures"]
    assert not home.left_behind()
