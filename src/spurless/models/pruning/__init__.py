"""Pruning masks and model size."""
