"""Rights in a cluster and manifests, with a kubectl that the tests write."""

from pathlib import Path

import pytest
import yaml

from podrace.cli.doctor import cluster
from podrace.cli.doctor.cluster import Kubectl

REPOSITORY = Path(__file__).parents[5]
KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *fail.yaml*|*"kustomize broken"*) echo "error: no such key" >&2; exit 1;;
  "get --raw /version"*) {version};;
  *nodes*) echo no; exit 1;;
  "auth can-i"*) echo yes;;
  "kustomize"*) printf 'kind: Service\\n---\\nkind: Deployment\\n';;
  "apply"*) cat > {folder}/applied;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kubectl on PATH; `calls` has its command lines."""
    write(tmp_path, 'echo \'{"gitVersion": "v1.37.1"}\'')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def write(folder: Path, version: str) -> None:
    (folder / "kubectl").write_text(KUBECTL.format(folder=folder, version=version))
    (folder / "kubectl").chmod(0o755)


async def test_every_right_is_asked_for_the_account_in_the_namespace(kubectl: Path) -> None:
    found = await cluster.read_cluster(Kubectl(kubectl / "config", "training", "system:serviceaccount:training:o"))
    assert (found.problem, found.version) == ("", "v1.37.1")
    assert [right for right, granted in found.rights.items() if not granted] == ["list nodes"]
    asked = [line for line in (kubectl / "calls").read_text().splitlines() if line.startswith("auth can-i")]
    assert len(asked) == len(cluster.RIGHTS) + len(cluster.WISHES)
    assert all(f"--kubeconfig={kubectl}/config" in line and "--namespace=training" in line for line in asked)
    assert all("--as=system:serviceaccount:training:o" in line for line in asked)


async def test_a_cluster_that_does_not_answer_is_a_problem(kubectl: Path) -> None:
    write(kubectl, 'echo "connection refused" >&2; exit 1')
    found = await cluster.read_cluster(Kubectl(kubectl / "config", "default"))
    assert found.problem == "connection refused"
    assert len((kubectl / "calls").read_text().splitlines()) == 1


async def test_a_call_that_takes_too_long_is_killed(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(kubectl, "exec sleep 60")
    monkeypatch.setattr(cluster, "DEADLINE_SECONDS", 0.2)
    found = await cluster.read_cluster(Kubectl(kubectl / "config", "default"))
    assert found.problem == "kubectl get took longer than 0.2 s"


async def test_without_kubectl_nothing_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in (await cluster.read_cluster(Kubectl(tmp_path, "default"))).problem
    assert "not installed" in (await cluster.read_manifests(Kubectl(None, ""), tmp_path)).problem


async def test_a_folder_is_rendered_and_its_objects_are_checked_by_the_api_server(
    kubectl: Path, tmp_path: Path
) -> None:
    (tmp_path / "overlay").mkdir()
    found = await cluster.read_manifests(Kubectl(None, ""), tmp_path / "overlay")
    assert (found.problem, found.objects, found.checked_by_cluster) == ("", 2, False)
    found = await cluster.read_manifests(Kubectl(kubectl / "config", "default"), tmp_path / "overlay")
    assert (found.problem, found.checked_by_cluster) == ("", True)
    assert (kubectl / "applied").read_text().count("kind:") == 2


async def test_manifests_that_cannot_be_rendered_or_read_are_a_problem(kubectl: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    monkeypatched = Kubectl(None, "")
    (tmp_path / "fail.yaml").mkdir()
    assert (await cluster.read_manifests(monkeypatched, tmp_path / "fail.yaml")).problem == "error: no such key"
    assert "cannot be read" in (await cluster.read_manifests(monkeypatched, tmp_path / "absent")).problem
    (tmp_path / "empty.yaml").write_text("")
    assert (await cluster.read_manifests(monkeypatched, tmp_path / "empty.yaml")).problem == "has no objects"


def test_the_rights_are_those_of_the_manifests() -> None:
    text = (REPOSITORY / "deploy/k8s/base/orchestrator-access.yaml").read_text()
    roles = {each["kind"]: each for each in yaml.safe_load_all(text) if "rules" in each}

    def rights(kind: str) -> set[tuple[str, ...]]:
        return {
            (verb, argument(rule["apiGroups"][0], resource, rule.get("resourceNames", [""])[0]))
            for rule in roles[kind]["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def argument(group: str, resource: str, name: str) -> str:
        return f"{resource}{f'.{group}' if group else ''}{f'/{name}' if name else ''}"

    def asked(wanted: dict[str, tuple[str, ...]]) -> set[tuple[str, ...]]:
        return {
            (verb, resource + "".join(f"/{each.partition('=')[2]}" for each in options if "subresource" in each))
            for verb, resource, *options in wanted.values()
        }

    assert asked(cluster.RIGHTS) == rights("Role")  # type: ignore[arg-type]
    assert asked(cluster.WISHES) == rights("ClusterRole")  # type: ignore[arg-type]
