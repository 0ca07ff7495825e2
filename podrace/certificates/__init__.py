"""Makes and names the certificates of a mesh: a development authority, and SPIFFE-style names that carry roles."""
