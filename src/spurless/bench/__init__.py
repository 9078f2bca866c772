"""Bench: methods on data under one protocol, and the claims that are checked with it."""
