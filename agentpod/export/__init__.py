"""Exports policies as ONNX and as programs of torch.export, and compares both with the torch policy.

`python -m agentpod.export FOLDER` is run by `podrace export`, which imports no torch.
"""
