"""Test double of IsaacGymEnvs 1.5.1: the signature of `make`, and tasks with the interface of its VecTask."""

import torch

_MADE = []


def make(
    seed,
    task,
    num_envs,
    sim_device,
    rl_device,
    graphics_device_id=-1,
    headless=False,
    multi_gpu=False,
    virtual_screen_capture=False,
    force_render=True,
    cfg=None,
):
    """Makes a task; as in the original, the seed is ignored, and a process can hold only one simulation."""
    from isaacgymenvs.tasks import find

    assert not _MADE, "a process can hold only one simulation"
    assert isinstance(num_envs, int)
    assert torch.device(sim_device) == torch.device(rl_device)
    _MADE.append(task)
    return find(task)(num_envs, rl_device)
