"""Learners that train one agent together and average what they learned."""
