"""A reranker to measure on, and what it finds among the first documents of a model that embeds."""
