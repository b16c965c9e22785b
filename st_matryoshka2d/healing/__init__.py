"""Repair the weights of a cut: refit what its layers add, so that they stand in for those that left."""
