"""Memory: arenas, offsets, packed weights, outputs, limits."""
