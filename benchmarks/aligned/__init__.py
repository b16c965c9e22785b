"""Parts of `alignment.py`: embeddings at every depth, computed once and kept, and scores of readouts on them."""
