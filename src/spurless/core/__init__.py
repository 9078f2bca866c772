"""Errors, groups, records, seeds, hashing, caches and locks that all other packages use."""
