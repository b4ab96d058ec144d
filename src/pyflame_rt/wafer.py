"""Programs for the wafer: what writes CSL of a graph, and how it is asked to."""

from pyflame_rt.backends.wse import CodeGenOptions, CodeGenResult, CSLCodeGenerator

__all__ = ["CSLCodeGenerator", "CodeGenOptions", "CodeGenResult"]
