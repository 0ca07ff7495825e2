"""Networks, action heads, distributions and policies."""
