"""A suite of problems with known solutions that measures how well hyperparameters are chosen."""
