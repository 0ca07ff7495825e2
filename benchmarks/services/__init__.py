"""What the services cost: the store, the leaderboard, the dashboard, tracing, and the start of a mesh."""
