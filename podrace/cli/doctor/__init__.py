"""Implements `podrace doctor`: checks whether podrace works here, and says how to fix what does not.

podrace/cli/doctor/
  diagnosis.py   one line of the report, its JSON, and the exit code
  readings.py    what was read of the machine, the store, a server and a cluster
  judgement.py   judges what was read; pure
  survey.py      reads the machine, the packages, the home, the store, the ports and a server
  gpu.py         examines GPUs in a child process, with the part `machine` of `podrace qualify`
  cluster.py     asks a Kubernetes cluster for rights, and renders manifests, with kubectl
  command.py     the command
"""
