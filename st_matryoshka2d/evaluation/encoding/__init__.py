"""Texts to embeddings, each once, and what mteb sees of them."""
