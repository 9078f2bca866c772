"""Built-in datasets: one file each, or one for a dataset and its offline version."""
