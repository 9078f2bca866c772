"""Core: the words that every room speaks."""
