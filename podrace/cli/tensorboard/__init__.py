"""Implements `podrace tensorboard`: writes the scores and the progress of agents as event files of TensorBoard.

TensorBoard shows a run for each agent, and one for the champion. Values have the names that Stable-Baselines3 uses.
"""
