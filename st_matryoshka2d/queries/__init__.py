"""Queries without a neural network: the fit of a token table in the space of the whole model, and reading one."""
