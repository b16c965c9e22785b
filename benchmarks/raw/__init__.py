"""Public data sets as they are published, and their form for the benchmarks."""
