"""Steps NVIDIA's simulators: client.py controls a simulator that server/ runs in NVIDIA's own Python interpreter."""
