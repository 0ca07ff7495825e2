"""Runs pods as processes of this machine, forked by a fork server."""
