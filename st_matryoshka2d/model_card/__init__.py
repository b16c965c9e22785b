"""Sections of the model card: what was trained, and what each size scores."""
