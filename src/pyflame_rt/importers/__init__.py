"""Model files of other formats to graphs: see :mod:`pyflame_rt.importers.registry`."""
