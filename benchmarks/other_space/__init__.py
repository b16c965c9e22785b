"""Maps from one model's embeddings into another model's index: what `other_index.py` compares."""
