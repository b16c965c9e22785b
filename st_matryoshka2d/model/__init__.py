"""One model and its depths: what it is made of, where it can be cut, and the cuts."""
