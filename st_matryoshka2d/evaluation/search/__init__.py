"""A corpus once, in chunks, for all sizes."""
