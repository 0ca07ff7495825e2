"""The commands `podrace policy ...`: which versions a policy server serves."""
