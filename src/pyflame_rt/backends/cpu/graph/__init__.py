"""Graphs for given shapes: specialised, grouped, matched, costed, before anything is lowered."""
