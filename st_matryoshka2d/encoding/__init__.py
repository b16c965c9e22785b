"""Embed texts at many sizes, check them before, and read embeddings that exist."""
