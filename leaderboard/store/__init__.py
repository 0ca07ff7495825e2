"""The leaderboard's database: schema, records and queries."""
