"""The training loop, its steps, checkpoints, evaluation, selection and selective prediction."""
