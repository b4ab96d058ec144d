"""From a graph to native steps: concrete shapes, groups, lowering, memory, arenas."""
