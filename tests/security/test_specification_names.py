"""A specification names code, programs and services: what a service refuses, and that a pod does not trust it for that.

Before there were limits, each of these specifications was accepted by standing services, and the pod imported the
module, started the program, or called the address.
"""

from pathlib import Path
from typing import Any

import pytest

from agentpod.config import PodConfig
from agentpod.roles.user_evaluator import UserEvaluator, UserEvaluatorSettings
from leaderboard.config import PluginConfig
from leaderboard.plugins.plugin_pool import PluginPool
from orchestrator.launchers.base import NewPod, PodEnvironment
from orchestrator.launchers.options import LauncherOptions
from orchestrator.launchers.pod_settings import environment, pod_settings, unstartable
from orchestrator.state.database import StateDatabase
from orchestrator.state.runtime import RuntimeState
from orchestrator.tournaments.lifecycle import Tournaments
from orchestrator.tournaments.queries import Queries
from podrace.config import config_from_arguments
from podrace.errors import BAD_SPEC, InvalidArgument
from podrace.limits.config import EVERYTHING, NOTHING, Allowed, command_settings
from podrace.limits.names import environment_problem, plugin_problem
from podrace.limits.specification import check_specification
from podrace.orchestrator.v1 import orchestrator_pb2 as pb
from podrace.specification.resolve import parse, resolve
from podrace.telemetry import TelemetryConfig
from podrace.tournament.v1.tournament_pb2 import EvolutionSpec, TournamentSpec
from simulators import SIMULATORS, make


class Clock:
    """A clock that stands still."""

    def wall(self) -> float:
        return 1.7e9

    def monotonic(self) -> float:
        return 1.0


def spec(**sections: Any) -> TournamentSpec:
    values = {"environment": {"id": "CartPole-v1"}, "algorithms": {"ppo": {}}, "objective": {"target_return": 1.0}}
    return resolve(parse({**values, **sections}, source="test"))


def in_environment(name: str, **options: Any) -> dict[str, Any]:
    return {"environment": {"id": name, "options": options}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    # Was run as the user of the pod within a second of CreateTournament.
    (in_environment("python:subprocess:Popen", args=["id"]), r"environment\.id = 'python:subprocess:Popen': .*modules"),
    (in_environment("antigravity:Any-v0"), r"environment\.id = .*module 'antigravity' .*allow\.modules"),
    (in_environment("gym:antigravity:Any-v0"), r"environment\.id = .*module 'antigravity' .*allow\.modules"),
    (in_environment("gym:GymV26Environment-v0", env_id="os:Any-v0"), r"environment\.id = .*can import any module"),
    (in_environment("isaacgym:Ant"), r"environment\.id = 'isaacgym:Ant': .*allow\.isaac"),
    (in_environment("grpc://10.0.0.1:22", id="x"), r"environment\.id = 'grpc://10\.0\.0\.1:22': .*allow\.services"),
    (in_environment("grpc://169.254.169.254:80", id="x"), r"environment\.id = .*never called"),
    (in_environment("Ant-v5", xml_file="/etc/passwd"), r"environment\.options\.xml_file = '/etc/passwd': .*data_roots"),
    (in_environment("Ant-v5", nested={"deep": ["../x"]}), r"environment\.options\.nested\.deep\.0 = '\.\./x'"),
    (in_environment("stocks", path="/proc/self/environ"), r"environment\.options\.path = .*allow\.data_roots"),
    (in_environment("stocks", path="http://10.0.0.1/x"), r"environment\.options\.path = .*by http; .*allow\.url_hosts"),
    ({"evaluation": {"options": {"xml_file": "~/x"}}}, r"evaluation\.options\.xml_file = '~/x'"),
    ({"evaluation": {"evaluator": "python:os:system"}}, r"evaluation\.evaluator = 'python:os:system': .*modules"),
    ({"pod": {"worker": "grpc://10.0.0.1:22"}}, r"pod\.worker = 'grpc://10\.0\.0\.1:22': .*allow\.services"),
    ({"evolution": {"generator": "python:os:system"}}, r"evolution\.generator = 'python:os:system': .*modules"),
    ({"evolution": {"updater": "grpc://metadata.google.internal:80"}}, r"evolution\.updater = .*never called"),
    ({"reports": {"test": {"options": {"xml_file": "/x"}}}}, r"reports\.test\.options\.xml_file = '/x'"),
    (
        {"environment": {"id": "Ant-v5", "search": {"options.xml_file": {"choices": ["ant.xml", "/x"]}}}},
        r"algorithms\.ppo\.hyperparameters\.environment\.options\.xml_file = '/x'",
    ),
    (
        {"algorithms": {"ppo": {"hyperparameters": {"network_class": "python:os:system"}}}},
        r"algorithms\.ppo\.hyperparameters\.network_class = 'python:os:system': .*podrace\.networks",
    ),
]
IDS = [str(index) for index in range(len(REFUSED))]


@pytest.mark.parametrize(("sections", "line"), REFUSED, ids=IDS)
async def test_a_standing_service_refuses_what_the_operator_has_not_allowed(
    sections: dict[str, Any], line: str, tmp_path: Path
) -> None:
    state = StateDatabase.open(tmp_path / "o.sqlite", Clock())
    try:
        tournaments = Tournaments(
            state, RuntimeState(10.0), mesh_id="", start_pods=True, random_bytes=bytes, allowed=NOTHING
        )
        with pytest.raises(InvalidArgument, match=f"^{line}") as caught:
            await tournaments.create(pb.CreateTournamentRequest(spec=spec(**sections)))
        assert caught.value.reason == BAD_SPEC
        assert "\n" not in caught.value.message
        assert not (await Queries(state, RuntimeState(10.0)).page(pb.ListTournamentsRequest(), None)).records
    finally:
        state.close()


@pytest.mark.parametrize(("launcher", "keys"), [("docker", ["pod.image", "pod.worker"]), ("process", ["pod.image"])])
async def test_what_the_launcher_cannot_start_is_refused_without_a_check_before_it(
    launcher: str, keys: list[str], tmp_path: Path
) -> None:
    state = StateDatabase.open(tmp_path / "o.sqlite", Clock())
    try:
        tournaments = Tournaments(
            *(state, RuntimeState(10.0)),
            mesh_id="",
            start_pods=True,
            random_bytes=bytes,
            allowed=EVERYTHING,
            unstartable=lambda pod: unstartable(pod, launcher, LauncherOptions()),
        )
        pod = {"pod": {"image": "team/robots:2", "worker": "grpc://127.0.0.1:50090"}}
        with pytest.raises(InvalidArgument) as caught:
            await tournaments.create(pb.CreateTournamentRequest(request_id="a", spec=spec(**pod)))
        assert [violation.field for violation in caught.value.violations] == keys
        assert caught.value.reason == BAD_SPEC
        assert not (await Queries(state, RuntimeState(10.0)).page(pb.ListTournamentsRequest(), None)).records
    finally:
        state.close()


@pytest.mark.parametrize("id", sorted(SIMULATORS))
def test_what_is_built_in_needs_no_permission(id: str) -> None:
    assert environment_problem(id, {}, NOTHING) == ""


@pytest.mark.parametrize(("sections", "line"), REFUSED, ids=IDS)
def test_the_mesh_of_one_user_allows_it_except_addresses_of_credentials(sections: dict[str, Any], line: str) -> None:
    if "never" in line:
        with pytest.raises(InvalidArgument, match=line):
            check_specification(spec(**sections), EVERYTHING)
    else:
        check_specification(spec(**sections), EVERYTHING)


async def test_options_of_an_evaluation_are_checked_like_those_of_the_specification(tmp_path: Path) -> None:
    state = StateDatabase.open(tmp_path / "o.sqlite", Clock())
    try:
        tournaments = Tournaments(state, RuntimeState(10.0), mesh_id="", start_pods=True, random_bytes=bytes)
        made = await tournaments.create(
            pb.CreateTournamentRequest(request_id="a", spec=spec(**in_environment("stocks")))
        )
        request = pb.CreateEvaluationRequest(request_id="b", tournament_id=made.tournament_id)
        request.checkpoint.agent_id, request.checkpoint.manifest_digest = "a", 64 * "0"
        request.options["path"] = "/proc/self/environ"
        with pytest.raises(InvalidArgument, match=r"^options\.path = '/proc/self/environ': .*allow\.data_roots"):
            await tournaments.create_evaluation(request)
    finally:
        state.close()


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/cron.d/x", "a/b", ".hidden", "", "a" * 64, "a\n"])
def test_a_report_is_not_named_after_a_path(name: str) -> None:
    """The command writes NAME.html on the machine of every user who looks at the results."""
    with pytest.raises(InvalidArgument, match=r"^reports\.'.*files are named after it"):
        spec(reports={name: {}})


# --- where it is used ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("python:subprocess:Popen", {"args": ["id"]}),
        ("antigravity:Any-v0", {}),
        ("isaacgym:Ant", {"interpreter": "/bin/sh"}),
        ("grpc://127.0.0.1:1", {"id": "cartpole"}),
        ("stocks", {"path": "/proc/self/environ"}),
        ("CartPole-v1", {"render_mode": "/etc/passwd"}),
    ],
)
def test_a_pod_refuses_it_whatever_the_orchestrator_hands_out(id: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^environment\.(id|options)") as caught:
        make(id, 1, options, allowed=NOTHING)
    assert caught.value.reason == BAD_SPEC


async def test_a_leaderboard_refuses_plugins_whatever_the_orchestrator_sends(tmp_path: Path) -> None:
    plugins = PluginPool(PluginConfig(), tmp_path)
    try:
        problem = await plugins.find_missing_function(EvolutionSpec(generator="python:os:system"))
        assert problem.startswith("evolution.generator = 'python:os:system': module 'os' is not allowed here")
    finally:
        await plugins.close()


def test_a_pod_refuses_an_evaluator_whatever_the_orchestrator_hands_out(tmp_path: Path) -> None:
    config = PodConfig("p", "unix:/o", "unix:/l", "store", tmp_path)
    with pytest.raises(InvalidArgument, match=r"^evaluation\.evaluator = 'python:os:system'"):
        UserEvaluator(config, UserEvaluatorSettings("python:os:system", 1.0))


def test_the_interpreter_of_a_simulator_is_the_operators_choice_even_where_isaac_is_allowed() -> None:
    problem = environment_problem("isaacgym:Ant", {"interpreter": "/bin/sh"}, Allowed(isaac=True))
    assert problem == "environment.options.interpreter = '/bin/sh': only the operator names programs"


def test_a_function_that_an_allowed_module_imports_is_not_allowed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from subprocess import Popen` in a module made `python:MODULE:Popen` an environment."""
    (tmp_path / "allowed_module.py").write_text("from subprocess import Popen\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidArgument, match="is defined elsewhere: module 'subprocess' is not allowed here"):
        make("python:allowed_module:Popen", 1, {"args": ["id"]}, allowed=Allowed(modules=("allowed_module",)))


# --- what the operator allows ----------------------------------------------------------------------------------------

SOME = Allowed(
    modules=("mine", "package.*", "other:make"),
    isaac=True,
    services=("127.0.0.1:*", "simulators.example:50060", "unix:/run/podrace/*"),
    data_roots={"prices": "/srv/prices"},
    url_hosts=("data.example",),
    variables=("MINE_*",),
)


@pytest.mark.parametrize(
    ("id", "allowed"),
    [
        ("python:mine:make", True),
        ("python:mine.inner:make", False),
        ("python:mined:make", False),
        ("python:package:make", True),
        ("python:package.inner.most:make", True),
        ("python:packages:make", False),
        ("python:other:make", True),
        ("python:other:break", False),
        ("mine:Any-v0", True),
        ("gym:mine:Any-v0", True),
        ("other:Any-v0", False),
        ("isaaclab:Isaac-Ant-v0", True),
        ("grpc://127.0.0.1:1", True),
        ("grpc://simulators.example:50060", True),
        ("grpc://SIMULATORS.example:50060", True),
        ("grpc://simulators.example:50061", False),
        ("grpc://simulators.example.evil:50060", False),
        ("grpc://unix:/run/podrace/s.sock", True),
        ("grpc://unix:/run/podrace/../docker.sock", False),
        ("grpc://unix:/run/docker.sock", False),
        ("mujoco:Ant-v5", True),
        ("CartPole-v1", True),
    ],
)
def test_the_operator_allows_modules_functions_and_addresses(id: str, allowed: bool) -> None:
    assert (environment_problem(id, {}, SOME) == "") is allowed
    if id.startswith(("python:", "grpc:")):
        assert (plugin_problem(id, SOME) == "") is allowed


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"modules": ("a b",)}, r"allow\.modules = 'a b': expected mine"),
        ({"services": ("anywhere",)}, r"allow\.services = 'anywhere': expected host:port"),
        ({"url_hosts": ("ftp://x",)}, r"allow\.url_hosts = 'ftp://x'"),
        ({"data_roots": {"x": "relative"}}, r"allow\.data_roots\.x = 'relative': expected an absolute path"),
        ({"data_roots": {"x": "/"}}, r"allow\.data_roots\.x = '/': expected an absolute path other than /"),
        ({"data_roots": {"x": "/proc/1"}}, r"allow\.data_roots\.x = '/proc/1': is a folder of the kernel"),
        ({"data_roots": {"http": "/srv"}}, r"allow\.data_roots\.http: this name has another meaning"),
        ({"data_roots": {"A": "/srv"}}, r"allow\.data_roots = 'A': expected a name"),
        ({"variables": ("PODRACE_STORE_SECRET_KEY",)}, r"allow\.variables = .*not passed to user code"),
        ({"variables": ("P*",)}, r"allow\.variables = .*not passed to user code"),
        ({"variables": ("*",)}, r"allow\.variables = '\*': expected"),
        ({"url_seconds": 0.0}, r"allow\.url_seconds = 0: expected more than 0"),
    ],
)
def test_a_malformed_setting_is_refused_at_start(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{line}"):
        Allowed(**settings)


def test_pods_get_the_limits_of_their_orchestrator() -> None:
    pod_environment = PodEnvironment("o", "l", "s", Path(), Path(), "", 60.0, TelemetryConfig(), allow=SOME)
    variables = environment(pod_settings(NewPod("p", "t", spec().pod), pod_environment) | {"folder": "/f"})
    assert config_from_arguments(PodConfig, [], program="agentpod", environ=variables).allow == SOME
    overrides = [text for key, value in command_settings(SOME).items() for text in ("--set", f"{key}={value}")]
    keys = ("pod_id", "orchestrator", "leaderboard", "store", "folder")
    required = [text for key in keys for text in ("--set", f"{key}=x")]
    assert config_from_arguments(PodConfig, [*required, *overrides], program="x", environ={}).allow == SOME


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b/c", "mujoco:/etc/passwd", "warp:/etc/passwd", "atari:../../x", "envpool:../os"]
)
def test_a_path_is_no_name_of_an_environment(name: str) -> None:
    """Before, these were accepted, and refused by the pods, which look them up among the names that they know."""
    for allowed in (NOTHING, EVERYTHING):
        with pytest.raises(InvalidArgument, match=r"^environment\.id = .*: expected a name of letters") as error:
            check_specification(spec(**in_environment(name)), allowed)
        assert "\n" not in error.value.message


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "mujoco:Ant-v5", "envpool:os", "gym:my_env.v2"])
def test_a_name_is_looked_up_where_environments_are_made(name: str) -> None:
    check_specification(spec(**in_environment(name)), NOTHING)
