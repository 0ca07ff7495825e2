"""A tournament with its checkpoints on an S3 server."""

import json
import subprocess
import sys

import pytest
import weed

pytestmark = pytest.mark.e2e


def test_a_tournament_keeps_its_checkpoints_on_an_s3_server(home, monkeypatch):
    if weed.binary() is None:
        pytest.skip(weed.MISSING)
    with weed.running_server() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        uri = server.uri("tournament")
        spec = home.spec("environment_steps = 10000", pool="maximum_pods = 1")
        trained = home.json("train", str(spec), "--store", uri)
        assert trained["state"] == "COMPLETED"
        assert not home.folders.store.exists()
        # The home has recorded its store.
        assert home.json("evaluate", "latest", "--episodes", "2")["episodes"] == 2
        assert not home.left_behind()

        def store(command):
            ran = [sys.executable, "-m", "podrace.cli", "store", command, uri, "--json"]
            return json.loads(subprocess.run(ran, capture_output=True, text=True, check=True, timeout=60).stdout)

        assert trained["best_agent_id"] in {agent["agent_id"] for agent in store("ls")}
        verified = store("verify")
        assert verified["damage"] == []
        assert verified["manifests"] >= 2
        champion = trained["champion_checkpoint"]
        folder = f"tournament/tournaments/{trained['tournament_id']}/objects"
        server.client().stat_object(weed.BUCKET, f"{folder}/{champion[:2]}/{champion}")
        assert server.client()._list_multipart_uploads(weed.BUCKET, prefix="tournament/").uploads == []
