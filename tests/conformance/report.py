"""Print how many cases of the ONNX suite pass on each provider, and how many without a host step.

A case has a host step when any part of it, also of an opened composition, is computed by the NumPy reference. A Loop or
Scan whose body is a native plan that the host calls once a turn has none.
"""

import sys
import warnings
from collections import Counter

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.conformance.suite import CLASSES, PROVIDERS, case_class, case_names, run_case


def main(providers: list[str]) -> int:
    """One row for each provider."""
    warnings.simplefilter("ignore")
    console = Console()
    table = Table("provider", "cases", "pass", "pass without host step", "fail")
    failures: list[tuple[str, str, str]] = []
    for provider in providers:
        counts: Counter[str] = Counter()
        parts = {name: Counter[str]() for name in CLASSES}
        for name in track(case_names(), provider, console=Console(stderr=True)):
            try:
                outcome = run_case(name, provider)
            except Exception as error:  # noqa: BLE001 - every kind of failure is counted
                failures.append((provider, name, f"{type(error).__name__}: {str(error).splitlines()[:1]}"))
                counts["fail"] += 1
                continue
            native = outcome.host_steps == 0
            counts["pass"] += 1
            counts["native"] += native
            parts[case_class(name)] += Counter(cases=1, native=int(native))
        table.add_row(provider, str(len(case_names())), str(counts["pass"]), str(counts["native"]), str(counts["fail"]))
        for name, part in parts.items():
            table.add_row(f"  {name}", "", str(part["cases"]), str(part["native"]), "")
    for row in failures:
        console.print(*row, highlight=False)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PROVIDERS)))
