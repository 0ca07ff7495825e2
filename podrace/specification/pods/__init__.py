"""Checks and fills in what a specification says about pods. Pure; a part of `podrace.specification`.

exchange.py  verified candidates, shared experience, opponents in games
sizes.py     pods of several sizes
"""
