"""Cut a model to a size and to a vocabulary: its layers, its dimensions, and the rows of its tokens."""
