"""A benchmark of hyperparameter choice: problems with known solutions, other rules, and planted failures."""
