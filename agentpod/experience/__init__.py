"""What algorithms learn from: rollouts, the replay buffer, and the slots that workers fill."""
