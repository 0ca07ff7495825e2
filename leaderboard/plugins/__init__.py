"""What the leaderboard asks plugins, and how their answers are checked."""
