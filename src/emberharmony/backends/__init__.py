"""Array libraries: one folder each, imported only when its library is asked for."""
