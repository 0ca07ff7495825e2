"""The learner: takes assignments, trains agents and publishes checkpoints."""
