"""Parts of the benchmarks on public tasks: their data, models that embed no text twice, and tables of scores."""
