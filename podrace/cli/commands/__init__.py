"""One module for each command of `podrace`."""
