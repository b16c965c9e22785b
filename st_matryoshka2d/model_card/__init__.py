"""Sections for the model card of sentence-transformers."""
