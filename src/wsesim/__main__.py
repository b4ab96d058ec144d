"""``python -m wsesim``."""

import sys

from wsesim.cli import main

sys.exit(main())
