"""What holds for one thread alone, or for one process alone."""
