#!/usr/bin/env python3
"""Find NumPy and backend-specific code; another spelling of `python -m emberharmony.lint`.

Works from a checkout, installed or not:

    python utils/detect_numpy_usage.py PATH... [--exclude D...] [-v]
        [--numpy-only] [--precision-only] [--conversion-only] [--operators-only]

All switches of the linter are understood; see `--help`.
"""

import sys
from pathlib import Path

# The checkout comes first, so that the tool matches the code it lies beside.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from emberharmony.lint import main

if __name__ == "__main__":
    sys.exit(main())
