"""Opens the roles of a pod for a session and calls them."""
