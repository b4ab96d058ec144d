"""Entry point of `python -m emberharmony.lint`."""

import os
import sys

from emberharmony.lint.cli import main

if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
