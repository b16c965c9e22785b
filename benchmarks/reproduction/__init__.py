"""The papers' experiments: what is trained, how it is scored, and the scores that the papers report."""
