"""Lists the simulators that a specification can name, without importing them."""

from collections.abc import Mapping
from dataclasses import dataclass

from podrace.tournament.v1.tournament_pb2 import EnvironmentSpec


@dataclass(frozen=True)
class Simulator:
    """One simulator, or a family of them."""

    help: str
    """One line."""
    action_kind: str = ""
    """Kind of its action space; empty if it depends on the environment."""
    continuous_option: str = ""
    """Option that makes its actions continuous; empty if there is none."""
    on_gpu: bool = False
    """Whether it steps on a GPU if there is one, so its tensors should stay there."""
    teams: bool = False
    """Whether several agents act in one environment."""


SIMULATORS: Mapping[str, Simulator] = {
    "cartpole": Simulator(
        "CartPole-v1 in torch, all environments stepped as one batch, on CPU or GPU", "discrete", on_gpu=True
    ),
    "pendulum": Simulator("Pendulum-v1 in torch, as cartpole", "continuous", on_gpu=True),
    "acrobot": Simulator("Acrobot-v1 in torch, as cartpole", "discrete", on_gpu=True),
    "mountaincar": Simulator("MountainCar-v0 in torch, as cartpole", "discrete", on_gpu=True),
    "stocks": Simulator("stock trading (FinRL's MDP), thousands of accounts in one batch", "continuous", on_gpu=True),
    "spread": Simulator(
        "agents that cover landmarks together (simple spread of MPE), in torch",
        "discrete",
        "continuous_actions",
        on_gpu=True,
        teams=True,
    ),
    "tag": Simulator(
        "agents that chase a scripted prey together (simple tag of MPE), in torch",
        "discrete",
        "continuous_actions",
        on_gpu=True,
        teams=True,
    ),
    **{
        f"matrix:{game}": Simulator(f"{help}, for two agents, in torch", "discrete", on_gpu=True, teams=True)
        for game, help in (
            ("two-step", "the two-step game of the QMIX paper"),
            ("nonmonotonic", "a matrix game without a monotonic factorization"),
            ("climbing", "the climbing game"),
        )
    },
    **{
        f"game:{game}": Simulator(
            f"{help}, against a built-in opponent or other agents, in torch", "discrete", on_gpu=True
        )
        for game, help in (
            ("tic-tac-toe", "tic-tac-toe"),
            ("connect-four", "connect four"),
            ("rock-paper-scissors", "rock, paper, scissors"),
        )
    },
    **{
        f"mujoco:{task}": Simulator(f"Gymnasium's {task}, all environments stepped by one call of MuJoCo", "continuous")
        for task in ("Ant-v5", "Humanoid-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    },
    "warp:ant": Simulator("MuJoCo's ant in MuJoCo Warp: thousands of environments on a GPU", "continuous", on_gpu=True),
    "warp:humanoid": Simulator("MuJoCo's humanoid in MuJoCo Warp, as warp:ant", "continuous", on_gpu=True),
    "<Gymnasium id>": Simulator("any registered Gymnasium environment, for instance CartPole-v1 or gym:Ant-v5"),
    "envpool:<task>": Simulator("EnvPool's C++ environments on a thread pool, for instance envpool:Ant-v5"),
    "atari:<game>": Simulator("the Arcade Learning Environment with the usual preprocessing", "discrete"),
    "isaacgym:<task>": Simulator("NVIDIA's Isaac Gym, in a separate Python interpreter", "continuous", on_gpu=True),
    "isaaclab:<id>": Simulator("NVIDIA's Isaac Lab, in a separate process", "continuous", on_gpu=True),
    "grpc://<host>:<port>": Simulator("a SimulatorService in any language"),
    "pettingzoo:<module>": Simulator(
        "parallel environments of PettingZoo, for instance pettingzoo:mpe2.simple_spread_v3", teams=True
    ),
    "python:<module>:<factory>": Simulator("your function that returns a simulator or a Gymnasium environment"),
}


def steps_on_gpu(id: str) -> bool:
    """Returns whether the simulator of an environment id steps on a GPU if there is one."""
    families = {name.partition("<")[0]: entry for name, entry in SIMULATORS.items() if "<" in name}
    family = next((entry for prefix, entry in families.items() if prefix and id.startswith(prefix)), None)
    entry = SIMULATORS.get(id, family)
    return entry is not None and entry.on_gpu


def simulator_of(environment: EnvironmentSpec) -> str:
    """Returns the id of the simulator of an environment: for a service (`grpc://`), the id at that service."""
    at_service = environment.id.startswith("grpc://") and "id" in environment.options
    return str(environment.options["id"]) if at_service else environment.id


def of_teams(id: str) -> bool:
    """Returns whether several agents act in an environment, as far as its id says."""
    entry = SIMULATORS.get(id)
    return entry.teams if entry else id.startswith("pettingzoo:")
