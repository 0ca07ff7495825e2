"""Which images a specification may name for its pods."""

import pytest

from orchestrator.launchers.images import image_problem
from orchestrator.launchers.options import DockerOptions, KubernetesOptions
from orchestrator.launchers.pod_settings import check_image
from podrace.errors import InvalidArgument
from podrace.tournament.v1.tournament_pb2 import PodSpec

DIGEST = "sha256:" + "0a" * 32
ALLOWED = ("team/robots:2", "registry.example:5000/team/*", f"team/pinned@{DIGEST}")


@pytest.mark.parametrize(
    "image",
    [
        "",
        "podrace/agentpod:latest",
        "team/robots:2",
        "registry.example:5000/team/any",
        f"registry.example:5000/team/any:1.0@{DIGEST}",
        f"team/pinned@{DIGEST}",
    ],
)
def test_the_configured_image_and_those_that_the_operator_lists_are_allowed(image: str) -> None:
    assert not image_problem(image, "docker", ALLOWED, "podrace/agentpod:latest")


@pytest.mark.parametrize(
    "image",
    [
        "team/robots",
        "team/robots:3",
        "team/robots:22",
        "team/pinned",
        "registry.example/team/any",
        "docker.io/team/robots:2",
    ],
)
@pytest.mark.parametrize("launcher", ["docker", "kubernetes"])
def test_another_image_is_refused_with_the_setting_of_the_operator(image: str, launcher: str) -> None:
    said = f"this image is not allowed here; the setting of its operator is launchers.{launcher}.images"
    assert image_problem(image, launcher, ALLOWED) == said


def test_by_default_no_other_image_is_allowed() -> None:
    for launcher, options in (("docker", DockerOptions()), ("kubernetes", KubernetesOptions())):
        with pytest.raises(InvalidArgument, match=rf"^pod\.image = 'team/robots:2': .*launchers\.{launcher}\.images"):
            check_image(PodSpec(image="team/robots:2"), launcher, options.images, "podrace/agentpod:latest")


@pytest.mark.parametrize(
    "image",
    [
        "registry.example:5000/team/../evil",
        "registry.example:5000/team/a b",
        "registry.example:5000/team/a\n",
        "-v",
        "Team/Robots",
    ],
)
def test_what_is_no_reference_is_refused_although_a_pattern_has_its_beginning(image: str) -> None:
    assert image_problem(image, "docker", (*ALLOWED, "-*", "Team*")).startswith("expected [host/]name")


@pytest.mark.parametrize("launcher", ["process", "external"])
def test_a_launcher_without_containers_refuses_every_image_in_one_line(launcher: str) -> None:
    said = f"^pod.image = 'team/robots:2': the launcher '{launcher}' starts no containers; leave it out, and install"
    with pytest.raises(InvalidArgument, match=said):
        check_image(PodSpec(image="team/robots:2"), launcher, ("*",))
    check_image(PodSpec(), launcher)


@pytest.mark.parametrize("entry", ["", "*", "team/*/robots", "a b*"])
def test_a_malformed_entry_of_the_list_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^launchers\.docker\.images = .*followed by \*"):
        DockerOptions(images=(entry,))
    with pytest.raises(InvalidArgument, match=r"^launchers\.kubernetes\.images = "):
        KubernetesOptions(images=(entry,))
