"""Registers an environment on import, as isaaclab_tasks does, under the name that this version uses."""

import os

import gymnasium
from isaaclab.app import RUNNING

assert RUNNING, "isaaclab_tasks can be imported only in a running application"
TASK = "Isaac-Ant-Direct-v0" if os.environ.get("ISAAC_STAND_IN_LAB") == "2.3" else "Isaac-Ant-Direct"
gymnasium.register(TASK, "isaaclab_tasks.direct:AntEnv", disable_env_checker=True, order_enforce=False)
DICT_TASK = "Isaac-Dict-Ant-Direct"
gymnasium.register(DICT_TASK, "isaaclab_tasks.direct:DictAntEnv", disable_env_checker=True, order_enforce=False)
CHOICES_TASKS = [f"Isaac-{name}-Direct" for name in ("Choices", "Pairs", "Number", "Text", "ShortMask")]
for id in CHOICES_TASKS:
    name = id.split("-")[1]
    gymnasium.register(id, f"isaaclab_tasks.direct:{name}Env", disable_env_checker=True, order_enforce=False)
