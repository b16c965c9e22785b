"""Private names and copied behaviour of the libraries that we build on: each stands here alone, with a test of its own."""
