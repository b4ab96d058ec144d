"""Commands: ``wsesim env``, ``wsesim cslc``, ``wsesim cs_python`` and ``wsesim constants``."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

from wsesim import __version__
from wsesim.fabric.errors import FabricError

__all__ = ["command_folder", "main"]

_COMMANDS = ("cslc", "cs_python")
_USAGE = (
    "usage: wsesim env | constants | cslc ... | cs_python ... | --version\n"
    "  env        prints the folder with cslc and cs_python, for PATH\n"
    "  constants  prints the cycle model\n"
    "  cslc       compiles a CSL program for the simulator\n"
    "  cs_python  runs a host script with the SDK's modules\n"
)


def command_folder() -> Path:
    """A folder with ``cslc`` and ``cs_python`` that run this very installation, made on first use."""
    root = Path(__file__).resolve().parents[1]
    key = hashlib.sha256(f"{sys.executable}\0{root}".encode()).hexdigest()[:12]
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = base / "wsesim" / f"bin-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _COMMANDS:
        text = (
            "#!/bin/sh\n"
            f'PYTHONPATH="{root}${{PYTHONPATH:+:$PYTHONPATH}}" exec "{sys.executable}" -m wsesim {name} "$@"\n'
        )
        script = folder / name
        if not script.exists() or script.read_text() != text:
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(script)
    return folder


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split(",")
    return int(first), int(second)


def _cslc_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cslc", description="Compiles a CSL program for the simulator.")
    parser.add_argument("layout", help="the file with the layout block")
    parser.add_argument("--arch", choices=("wse2", "wse3"), default="wse2")
    parser.add_argument("--params", action="append", default=[], help="name:value,...")
    parser.add_argument("--colors", action="append", default=[], help="name:colour,...")
    parser.add_argument("--fabric-dims", type=_pair, default=None, metavar="W,H")
    parser.add_argument("--fabric-offsets", type=_pair, default=(0, 0), metavar="X,Y")
    parser.add_argument("-o", dest="output", default="out")
    parser.add_argument("--memcpy", action="store_true")
    parser.add_argument("--channels", type=int, default=0)
    parser.add_argument("--width-west-buf", type=int, default=0)
    parser.add_argument("--width-east-buf", type=int, default=0)
    parser.add_argument("--import-path", action="append", default=[])
    parser.add_argument("--max-inlined-iterations", type=int, default=None)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--strict", action="store_true", help="reject everything outside the documented language")
    return parser


def _number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise FabricError(f"--colors {name}: a colour is a number, got {value!r}") from None


def cslc(argv: list[str]) -> int:
    """The compiler's command line."""
    from wsesim.csl.program.driver import compile_program, parse_assignments, write_output
    from wsesim.csl.syntax.diagnostics import CslError

    args = _cslc_parser().parse_args(argv)
    try:
        params = {k: v for text in args.params for k, v in parse_assignments(text).items()}
        colors = {k: _number(k, v) for text in args.colors for k, v in parse_assignments(text, "--colors").items()}
        program = compile_program(
            Path(args.layout),
            arch=args.arch,
            params=params,
            colors=colors,
            fabric_dims=args.fabric_dims,
            fabric_offsets=args.fabric_offsets,
            memcpy=args.memcpy,
            channels=args.channels,
            width_west_buf=args.width_west_buf,
            width_east_buf=args.width_east_buf,
            strict=args.strict,
            import_paths=args.import_path,
        )
        write_output(program, Path(args.output), layout=args.layout, strict=args.strict)
    except CslError as e:
        sys.stderr.write(f"{e}\n")
        return 1
    except FabricError as e:
        sys.stderr.write(f"error: {e}\n")
        return 1
    return 0


def cs_python(argv: list[str]) -> int:
    """Python with the SDK's host modules on its path."""
    shim = Path(__file__).resolve().parent / "host" / "shim"
    if not argv:
        sys.stderr.write("usage: cs_python SCRIPT [ARGUMENTS]\n")
        return 2
    script = Path(argv[0])
    if not script.exists():
        sys.stderr.write(f"cs_python: no such file: {script}\n")
        return 2
    from wsesim.host.scripts import run_script

    sys.path.insert(0, str(shim))
    return run_script(script, argv[1:])


def constants() -> int:
    """Prints the cycle model's constants with their sources."""
    from wsesim.fabric.timing import LABEL
    from wsesim.fabric.timing import constants as table

    sys.stdout.write(f"{LABEL}\n")
    for row in table():
        mark = "published" if row.published else "assumed"
        sys.stdout.write(f"{row.name:22} {row.value:>12g}  {mark:10}  {row.source}\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``wsesim``."""
    args = sys.argv[1:] if argv is None else argv
    command = args[0] if args else ""
    if command == "env":
        sys.stdout.write(f"{command_folder()}\n")
        return 0
    if command == "cslc":
        return cslc(args[1:])
    if command == "cs_python":
        return cs_python(args[1:])
    if command == "constants":
        return constants()
    if command == "--version":
        sys.stdout.write(f"{__version__}\n")
        return 0
    if command in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0
    wrong = f"wsesim: there is no command {command!r}\n" if command else ""
    sys.stderr.write(wrong + _USAGE)
    return 2
