"""Fit readouts: maps from every depth into the space of the whole model."""
