"""mteb's own evaluation of each size, kept on disk."""
