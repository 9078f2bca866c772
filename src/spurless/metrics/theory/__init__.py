"""Closed forms from the papers, used by claims and tests as exact references."""
