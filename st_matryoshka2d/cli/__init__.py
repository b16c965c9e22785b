"""The command line: `st-matryoshka2d`, or `python -m st_matryoshka2d`. One file for each command.

Nothing heavy is imported before a command runs, so that `--help` and shell completion answer at once.
"""
