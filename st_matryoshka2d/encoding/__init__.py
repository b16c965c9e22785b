"""Embed texts at many sizes, and read embeddings that exist."""
