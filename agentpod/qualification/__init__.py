"""Measures whether podrace works on the GPUs of this machine, and how fast, for `podrace qualify`.

Each part is one module: it measures, and a pure function grades what was measured. On a machine without a GPU the same
code runs on processors, so that it is tested, and every finding that does not fail is ABSENT.

agentpod/qualification/
  program.py       `python -m agentpod qualify`: the whole report, in an image
  part_process.py  `python -m agentpod qualify-part`: one part
  config.py        configuration of these processes
  bench.py         devices, and timing on them
  trials.py        algorithms and experience in this process; trial_pod.py: a pod of processes of this machine
  operations.py    counts operations; shared_random.py: the same random numbers on every device
  members.py       processes that form a group
  plane_trials/    trials of planes, also between pods that a launcher starts
  machine.py, primitives.py, numerics.py, graphs.py, planes.py, rates.py, learning.py, resume.py, collectives.py,
  nodes.py, tournament.py    the parts, see podrace.qualification.parts
"""
