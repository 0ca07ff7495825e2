"""A module that needs what is not installed."""

import a_package_that_is_missing  # noqa: F401
