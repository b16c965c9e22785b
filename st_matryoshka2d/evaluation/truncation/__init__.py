"""Other coordinates than the first: the baselines of matryoshka training."""
