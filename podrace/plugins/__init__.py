"""Runs user code behind a contract: functions in supervised child processes, and services at an address."""
