"""The .pfm model format: one file, weights ready to be mapped."""

from pyflame_rt.format.pfm import dumps_model, is_pfm, load_model, loads_model, save_model

__all__ = ["dumps_model", "is_pfm", "load_model", "loads_model", "save_model"]
