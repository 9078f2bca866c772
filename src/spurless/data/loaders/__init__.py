"""Loaders for user data."""
