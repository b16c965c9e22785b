"""Parts of `baselines.py`."""
