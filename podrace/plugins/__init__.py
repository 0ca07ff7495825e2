"""Runs user code behind a contract: functions in supervised child processes, and gRPC services at an address.

address.py          parses the address of a plugin: a Python function or a gRPC service
loader.py           imports a function and limits what its process may use
child.py            connects to a plugin: to a service, or to a child process that it starts, checks and kills
server.py           runs in the child process: loads the function and serves it over gRPC
host.py             runs child processes for another process, under another user id or in another container
hosted.py           connects to a function that such a host runs
circuit_breaker.py  decides when a plugin that keeps failing is called again
entry_points.py     finds algorithms that installed distributions offer
declarations.py     examines classes of user-defined algorithms in a separate process
user_calls.py       calls methods of user-defined classes, and reports errors in one line

Generators, updaters and evaluators use the first seven modules. `python:` simulators and algorithms, which run inside
the process that steps or trains, use the first two. No other package imports or starts user code.
"""
