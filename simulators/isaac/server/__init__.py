"""Serves one of NVIDIA's simulators from the interpreter that it requires; does not import podrace.

Written for Python 3.8, the newest that Isaac Gym supports; needs numpy, torch and the simulator. A test checks this.
"""
