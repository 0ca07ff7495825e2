"""Decides who may call which method: authenticators, the rules of the contract, tokens, and the server interceptor.

A server asks its authenticators who calls (`guard`), looks up the rule of the method in the contract (`rules`), and
refuses everything that no rule allows (`interceptor`). A client sends a token with its calls (`sending`).
"""
