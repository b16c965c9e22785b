"""The command line. Each command calls one public function and prints what the library prints.

Nothing slow is imported before a command runs, so that `--help` and completion answer at once.
"""
