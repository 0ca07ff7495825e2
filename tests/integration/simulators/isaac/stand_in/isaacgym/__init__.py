"""Test double of Isaac Gym Preview 4: refuses to be imported after torch, and prints a lot."""

import sys

if "torch" in sys.modules:
    raise ImportError("PyTorch was imported before isaacgym modules. Please import torch after isaacgym modules.")
print("Importing module 'gym_38'", flush=True)
