"""`podrace certs` makes, lists, renews and revokes certificates, and never replaces an authority."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from podrace.certificates.folder import STANDARD


def test_one_command_makes_certificates_for_every_role(type_: Any, tmp_path: Path) -> None:
    answer = type_("certs", "make", "c", "--host", "orchestrator=mesh.example.org", "--json")
    assert answer.code == 0
    found = {each["path"]: each for each in answer.json}
    assert set(found) == {"authority", *(name.path for name in STANDARD)}
    assert "mesh.example.org" in found["orchestrator"]["hosts"]
    assert found["operator/operator"]["uri"] == "spiffe://podrace/operator/operator"
    assert (tmp_path / "c/orchestrator/tls.key").exists()


def test_a_second_make_refuses_and_with_reuse_changes_nothing_that_is_valid(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c")
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.*")}
    refused = type_("certs", "make", "c")
    assert refused.code == 1
    assert "there is an authority already" in refused.err
    assert type_("certs", "make", "c", "--reuse").code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.*")} == before


def test_reuse_adds_what_is_missing_and_renews_what_expires_soon(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c", "--days", "1")
    orchestrator = (tmp_path / "c/orchestrator/tls.crt").read_bytes()
    (tmp_path / "c/leaderboard/tls.crt").unlink()
    (tmp_path / "c/leaderboard/tls.key").unlink()
    assert type_("certs", "make", "c", "--reuse").code == 0
    assert (tmp_path / "c/leaderboard/tls.crt").exists()
    assert (tmp_path / "c/orchestrator/tls.crt").read_bytes() == orchestrator


def test_reuse_replaces_certificates_of_an_authority_that_is_gone(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c", "--host", "orchestrator=mesh.example.org")
    before = (tmp_path / "c/orchestrator/tls.crt").read_bytes()
    for file in (tmp_path / "c/authority").iterdir():
        file.unlink()
    found = {each["path"]: each for each in type_("certs", "make", "c", "--reuse", "--json").json}
    assert (tmp_path / "c/orchestrator/tls.crt").read_bytes() != before
    assert (tmp_path / "c/orchestrator/ca.crt").read_bytes() == (tmp_path / "c/authority/ca.crt").read_bytes()
    assert "mesh.example.org" in found["orchestrator"]["hosts"]
    assert "another authority" not in type_("certs", "ls", "c").out


def test_people_and_plugins_get_certificates_of_their_own(type_: Any) -> None:
    type_("certs", "make", "c")
    added = type_("certs", "add", "c", "user", "alice", "--namespace", "vision", "--json").json
    assert [each["uri"] for each in added] == ["spiffe://podrace/ns/vision/user/alice"]
    added = type_("certs", "add", "c", "plugin", "scorer", "--host", "scorer.example.org", "--json").json
    assert added[0]["hosts"] == ["scorer.example.org"]
    nameless = type_("certs", "add", "c", "user")
    assert nameless.code == 2
    assert "needs the name of its holder" in nameless.err


def test_the_list_shows_expiry_and_revocation(type_: Any) -> None:
    type_("certs", "make", "c", "--days", "90")
    assert type_("certs", "revoke", "c", "operator/operator").code == 0
    lines = {line.split()[0]: line for line in type_("certs", "ls", "c").out.splitlines() if line.split()}
    assert "revoked" in lines["operator/operator"]
    assert "89" in lines["orchestrator"]
    assert "valid" in lines["orchestrator"]


def test_only_the_certificates_that_were_renewed_can_be_revoked(type_: Any) -> None:
    type_("certs", "make", "c")
    type_("certs", "renew", "c", "operator/operator")
    assert not type_("certs", "revoke", "c", "operator/operator", "--replaced", "--json").json[0]["revoked"]
    assert "has replaced none" in type_("certs", "revoke", "c", "pod-leader", "--replaced").err
    assert type_("certs", "revoke", "c", "operator/operator", "--json").json[0]["revoked"]


def test_renewal_of_all_leaves_the_authority_and_the_revoked_ones(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c")
    type_("certs", "revoke", "c", "pod-leader")
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.crt")}
    assert type_("certs", "renew", "c").code == 0
    changed = {path.parent.name for path, content in before.items() if path.read_bytes() != content}
    services = {"orchestrator", "leaderboard", "pod-role", "plugin", "simulators", "policy-server", "dashboard"}
    assert changed == services | {"operator"}


def test_secrets_are_those_of_services_and_pods_and_never_that_of_the_authority(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c")
    listed = type_("certs", "secrets", "c", "--namespace", "training").json
    secrets = {item["metadata"]["name"]: item for item in listed["items"]}
    tls = {"podrace-orchestrator-tls", "podrace-leaderboard-tls", "podrace-agentpod-tls", "podrace-serving-tls"}
    tls.add("podrace-dashboard-tls")
    assert set(secrets) == {*tls, "podrace-mesh-key"}
    assert not any("mesh.key" in secrets[name]["data"] for name in tls)
    assert all(item["metadata"]["namespace"] == "training" for item in secrets.values())
    key = base64.b64decode(secrets["podrace-agentpod-tls"]["data"]["tls.key"])
    assert key == (tmp_path / "c/pod-role/tls.key").read_bytes()
    authority_key = (tmp_path / "c/authority/ca.key").read_bytes()
    assert base64.b64encode(authority_key).decode() not in json.dumps(listed)


@pytest.mark.parametrize(
    ("path", "secret", "component"),
    [("policy-server", "podrace-serving-tls", "serving"), ("viewer/dashboard", "podrace-dashboard-tls", "dashboard")],
)
def test_secrets_of_an_older_folder_leave_out_those_of_later_components(
    type_: Any, tmp_path: Path, path: str, secret: str, component: str
) -> None:
    type_("certs", "make", "c")
    shutil.rmtree(tmp_path / "c" / path)
    answer = type_("certs", "secrets", "c")
    assert answer.code == 0, answer.err
    names = {item["metadata"]["name"] for item in answer.json["items"]}
    assert secret not in names
    assert {"podrace-orchestrator-tls", "podrace-leaderboard-tls", "podrace-agentpod-tls", "podrace-mesh-key"} < names
    assert f"component {component}, make it with: podrace certs make c --reuse" in answer.err
    type_("certs", "make", "c", "--reuse")
    assert secret in {item["metadata"]["name"] for item in type_("certs", "secrets", "c").json["items"]}


def test_a_certificate_that_every_mesh_needs_must_be_there(type_: Any, tmp_path: Path) -> None:
    type_("certs", "make", "c")
    shutil.rmtree(tmp_path / "c/pod-role")
    assert type_("certs", "secrets", "c").code == 2


@pytest.mark.parametrize(("host", "message"), [("orchestrater=x", "PATH=HOST"), ("orchestrator=a:1", "without a port")])
def test_a_wrong_host_is_refused_before_an_authority_is_made(
    type_: Any, tmp_path: Path, host: str, message: str
) -> None:
    answer = type_("certs", "make", "c", "--host", host)
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "c").exists()
