"""The embedded mesh: starts and stops the services of one home folder."""
