"""The Python client of the API, used by the command, notebooks and the dashboard. Imports neither click nor rich."""
