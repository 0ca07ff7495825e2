"""Makes the calls of the client, one module for each kind of resource."""
