"""The papers' experiments on data and models at hand: what is trained, how it is scored, and what the papers print."""
