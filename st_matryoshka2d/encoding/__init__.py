"""Embed texts at many sizes, check them before, and write embeddings to files."""
