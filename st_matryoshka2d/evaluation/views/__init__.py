"""What is scored: a size, a precision, a choice of coordinates."""
