"""Decides and enforces what the specification of a tournament may name: modules, services, files, URLs.

config.py            what the operator allows (`allow.*` of every service)
names.py             checks environment ids, options and addresses of plugins (pure)
specification.py     checks a whole specification, key by key (pure)
addresses.py         which network addresses are never connected to (pure)
files.py             opens a file below a data root
file_options.py      replaces names of files in options by their paths
urls.py              checks URLs (pure); fetching.py: fetches them
services.py          how services of third parties are called
user_code.py         whether a specification names user code (pure)
user_environment.py  the environment variables of processes that run user code

The orchestrator checks a specification when a tournament is created. The leaderboard, the pods and the simulator
service check again what they are about to use, by their own configuration: they do not trust the orchestrator.
"""
