"""Trains one agent at a time: workers collect experience, learners update the policy, an evaluator scores it.

__main__.py        runs one process of a pod: `python -m agentpod ROLE`
config.py          configuration of a pod, and of the processes around it
process/           starts the processes of a pod: wiring, the fork server, and retraining
learner/           the leader and its followers: acquires assignments, trains agents, publishes checkpoints
session/           opens the roles of a pod and calls them
roles/             the services that a learner calls: worker and evaluator
fusion/            several learners train one agent and average their state in rounds
algorithms/        algorithms, by their names in a specification
models/            networks, action heads, distributions and policies
experience/        rollouts, the replay buffer, and the memory that workers fill
capture/           replays gradient steps and steps of collection from CUDA graphs
liveness/          detects roles that make no progress
export/            exports policies as ONNX and as programs of torch.export
imports/           converts policies of Stable-Baselines3 to exported policies
qualification/     measures whether podrace works on the GPUs of a machine
compute_thread.py  runs all tensor work of a process on one thread
storage_waits.py   waits while checkpoints can be neither stored nor submitted
pod_token.py       finds the token of the pod
current_device.py  makes a GPU the current device of a thread
gpu_sampler.py     samples the use of the GPUs of a pod
memory_errors.py   reports exhausted memory with the settings to change
rate_schedules.py  calls the learning rate schedules of users
returns.py         advantages and discounted returns without a loop over steps
seeding.py         derives every random stream of a pod
"""
