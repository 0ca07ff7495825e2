"""Simulators of environments in which several agents act at the same time.

Each agent of an environment has a separate lane, and the lanes of an environment are adjacent: a tensor of N A lanes is
one of N environments and A agents, `tensor.view(N, A, ...)`. `observation_space.agents` names the agents, and its
presence is the only difference to other simulators (`simulators.base`). So observations, actions, rewards and the ends
of episodes exist for each agent, and planes, rollouts and normalizers need not know about agents.

* All agents have the same spaces. Where they differ, observations are padded with zeros and actions are masked.
* An environment ends in the step in which all its lanes end, and is reset in that step.
* An agent that leaves earlier ends its episode when it leaves (`terminated`). Until the environment ends it is absent:
  its observation is 0, its reward is 0, its action is ignored, and `terminated` stays set. `agentpod.algorithms.teams`
  does not train on these steps.
* The return of the team is the sum of the returns of its agents. A reward that belongs to the whole team is divided
  equally among them.
"""
