"""The wafer: graphs become CSL programs, which the simulator ``wsesim`` or a real system runs."""

from pyflame_rt.backends.wse.generator import CSLCodeGenerator
from pyflame_rt.backends.wse.options import CodeGenOptions, CodeGenResult

__all__ = ["CSLCodeGenerator", "CodeGenOptions", "CodeGenResult"]
