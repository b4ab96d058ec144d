"""What holds for the arguments of an operation on every library, checked before its own function is called.

Each guard is written once and gets the library's function as `native`. Operations without a guard go straight to it.
"""

from emberharmony.guards import elements, folds, indexing, matrices, places, scalars, shapes, transforms
from emberharmony.guards.table import FOREIGN, GUARDS

__all__ = [
    "FOREIGN",
    "GUARDS",
    "elements",
    "folds",
    "indexing",
    "matrices",
    "places",
    "scalars",
    "shapes",
    "transforms",
]
