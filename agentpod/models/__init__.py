"""Networks, distributions and policies."""
