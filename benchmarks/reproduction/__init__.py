"""The papers' experiments: training, scoring, and the scores that the papers report."""
