"""``python -m spurless``."""

from spurless.cli import main

main()
