"""Files that are written whole or not at all, tables in them, and the headers of weights."""
