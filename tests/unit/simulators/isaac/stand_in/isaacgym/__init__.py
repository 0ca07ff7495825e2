"""Stands in for Isaac Gym Preview 4: refuses to come after torch, and is loud."""

import sys

if "torch" in sys.modules:
    raise ImportError("PyTorch was imported before isaacgym modules. Please import torch after isaacgym modules.")
print("Importing module 'gym_38'", flush=True)
