"""Trains with podrace, Stable-Baselines3 and RLlib in separate processes with the same protocol (`process`)."""
