"""Spurless finds the shortcuts a classifier relies on, removes them, and proves it."""

from __future__ import annotations

__version__ = "0.1.0"
