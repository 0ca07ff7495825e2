"""Lists what a specification can name; a part of `podrace.specification.catalog`."""
