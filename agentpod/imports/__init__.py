"""Converts policies that Stable-Baselines3 saved to exported policies, without Stable-Baselines3.

agentpod/imports/
  model_file.py        reads the file that `model.save` wrote; nothing in it is unpickled
  statistics_file.py   reads the statistics that `VecNormalize.save` wrote; constructs arrays and empty objects only
  conversion.py        turns parameters into those of a podrace policy; pure
  episodes.py          plays episodes with the policy
  __main__.py          `python -m agentpod.imports FOLDER`, run by `podrace import`, which imports no torch
"""
