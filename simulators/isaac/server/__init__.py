"""The far side of `simulators.isaac`: runs in the interpreter that NVIDIA's simulators want; knows nothing of podrace.

Written for Python 3.8, the newest that Isaac Gym works with; needs numpy, torch and the simulator. A test keeps it so.
"""
