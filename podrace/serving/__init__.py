"""Serves policies: `podrace serve`, PolicyService and the Open Inference Protocol in front of one engine.

`decisions` holds what is decided, without machinery. `engine` loads policies and answers requests. Nothing here imports
torch.
"""
