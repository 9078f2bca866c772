"""Train: the one loop, its steps, checkpoints, evaluation and selection."""
