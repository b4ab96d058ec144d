"""``python -m pyflame_rt.cli``."""

from pyflame_rt.cli import main

main()
