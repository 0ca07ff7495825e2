"""Decides which version of a policy serves, which one answers a request, and which requests form a batch. Pure."""
