"""Compiles and runs small CSL programs given as text."""

import numpy as np

from wsesim.csl.program.driver import compile_texts
from wsesim.fabric import load
from wsesim.host import HostSession

LAYOUT = """
param size: u16 = 1;
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {w}, .height = {h} }});
layout {{
  @set_rectangle({w}, {h});
  for (@range(u16, {w})) |x| {{
    for (@range(u16, {h})) |y| {{
      @set_tile_code(x, y, "pe.csl", .{{ .memcpy_params = memcpy.get_params(x) }});
    }}
  }}
  {exports}
}}
"""
HEAD = """
param memcpy_params;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
"""


def session(texts, arch="wse3", *, memcpy=True, **options):
    """A started session for files given as path to text; the layout is ``layout.csl``."""
    program = compile_texts(texts, arch=arch, memcpy=memcpy, channels=1)
    host = HostSession(load(program, **options))
    host.start()
    return host


def one_program(body, exports, *, w=1, h=1, arch="wse3", **options):
    """A session in which every PE runs ``body``; ``exports`` are the layout's ``@export_name`` lines."""
    texts = {"layout.csl": LAYOUT.format(w=w, h=h, exports=exports), "pe.csl": HEAD + body}
    return session(texts, arch, **options)


def put(host, name, data, where=None):
    """Copies ``data[h, w, n]`` (32-bit elements) to the device."""
    h, w, _ = data.shape
    host.copy_in(name, np.ascontiguousarray(data).view(np.uint32), where or (0, 0, w, h), 4)


def get(host, name, n, dtype=np.float32, where=None):
    """Copies ``n`` 32-bit elements a PE from the device."""
    x, y, w, h = where or (0, 0, host.machine.width, host.machine.height)
    out = np.zeros((h, w, n), np.uint32)
    host.copy_out(name, out, (x, y, w, h), 4)
    return out.view(dtype)
