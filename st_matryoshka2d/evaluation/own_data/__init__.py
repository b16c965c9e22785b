"""Tasks of your own data: `sts_task`, `retrieval_task` and `classification_task` make what `evaluate` scores."""
