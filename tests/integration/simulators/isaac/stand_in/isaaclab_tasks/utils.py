"""Returns configurations by id."""

from types import SimpleNamespace

from isaaclab_tasks import CHOICES_TASKS, DICT_TASK, TASK


def parse_env_cfg(task_name, device="cuda:0", num_envs=None, use_fabric=None):
    """Returns the configuration of a registered environment; only that of 3.0 has `compute_final_obs`."""
    if task_name not in (TASK, DICT_TASK, *CHOICES_TASKS):
        raise KeyError(f"no configuration of {task_name}")
    cfg = SimpleNamespace(device=device, num_envs=num_envs, seed=None)
    if not task_name.endswith("-v0"):
        cfg.compute_final_obs = False
    return cfg
