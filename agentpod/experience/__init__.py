"""Experience that algorithms learn from: rollouts, the replay buffer, and the memory that workers fill."""
