"""Replays gradient steps and steps of collection from CUDA graphs."""
