"""Which tokens stay: the tokenizer and the rows of a model for the words of given texts."""
