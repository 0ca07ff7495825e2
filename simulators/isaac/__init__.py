"""NVIDIA's simulators: client.py steps a simulator that server/ runs in NVIDIA's own Python interpreter."""
