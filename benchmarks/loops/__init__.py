"""Training loops in processes of their own: ours, Stable-Baselines3's and RLlib's, asked the same way (`process`)."""
