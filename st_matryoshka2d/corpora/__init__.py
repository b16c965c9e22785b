"""Embed a corpus: batches of columns for engines with many workers, and Parquet shards on one machine."""
