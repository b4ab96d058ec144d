"""What a run cost: cycles, wavelets, hops, load of links, time and memory of PEs; as text, JSON and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wsesim.fabric.page import page
from wsesim.fabric.timing import LABEL, constants

if TYPE_CHECKING:
    from wsesim.fabric.machine import Machine

__all__ = ["Report", "collect", "write_reports"]

_SIDES = ("west", "east", "south", "north")


@dataclass(frozen=True)
class PeReport:
    """One PE."""

    x: int
    y: int
    program: str
    busy: float
    idle: float
    tasks: int
    operations: int
    memory: int


@dataclass(frozen=True)
class Report:
    """Everything that was counted in a run. Cycles follow the model's constants; words and hops are exact."""

    label: str
    arch: str
    width: int
    height: int
    cycles: float
    events: int
    wavelets: int
    hops: int
    colors: dict[int, int]
    busiest_link: dict[str, Any]
    links: list[list[int]]
    pes: list[PeReport]
    memory: list[dict[str, Any]]
    timeline: list[tuple[int, int, float, float, str]] = field(default_factory=list)
    constants: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """A summary for the terminal."""
        busy = [p.busy for p in self.pes]
        link = self.busiest_link
        share = 100 * max(busy, default=0) / self.cycles if self.cycles else 0
        lines = [
            f"{self.arch}, {self.width} x {self.height} PEs; {self.label}",
            f"cycles        {self.cycles:,.0f}",
            f"wavelets      {self.wavelets:,} sent, {self.hops:,} hops",
            f"busiest link  {link['words']:,} words, PE {tuple(link['pe'])} to the {link['side']}",
            f"busiest PE    {max(busy, default=0):,.0f} cycles ({share:.0f} %)",
            "colours       " + ", ".join(f"{c}: {n:,}" for c, n in sorted(self.colors.items())),
        ]
        lines += [
            f"memory        {m['program']}: {m['total']:,} of 49,152 bytes "
            f"(data {m['data']:,}, code {m['code']:,}, stack {m['stack']:,}, reserve {m['reserve']:,})"
            for m in self.memory
        ]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """The same as JSON, with the table of constants: one line for each field."""
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in self._plain().items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def _plain(self) -> dict[str, Any]:
        """The fields as plain values, without a copy of the large ones."""
        return vars(self) | {"pes": [vars(pe) for pe in self.pes]}

    def html(self) -> str:
        """A page with a heat map of the fabric and a timeline; needs nothing but itself."""
        return page(self._plain(), self.text())


def collect(machine: Machine) -> Report:
    """What a machine has counted so far."""
    words = machine.link_words
    links = [words[i : i + 4] for i in range(0, len(words), 4)]
    top = max(range(len(words)), key=words.__getitem__, default=0)
    place = (top // 4 % machine.width, top // 4 // machine.width)
    pes = []
    for (x, y), pe in sorted(machine.pes.items(), key=lambda item: (item[0][1], item[0][0])):
        idle = max(0.0, machine.now - pe.busy_cycles)
        total = pe.program.memory.total
        pes.append(PeReport(x, y, Path(pe.program.file).name, pe.busy_cycles, idle, pe.tasks_run, pe.ops_run, total))
    memory = [
        {"program": Path(p.file).name, "total": p.memory.total} | asdict(p.memory) for p in machine.program.programs
    ]
    return Report(
        LABEL,
        machine.arch,
        machine.width,
        machine.height,
        machine.now,
        machine.events_run,
        machine.wavelets,
        machine.hops,
        dict(machine.color_words),
        {"pe": list(place), "side": _SIDES[top % 4], "words": words[top] if words else 0},
        links,
        pes,
        memory,
        list(machine.timeline or ()),
        [asdict(c) for c in constants(machine.timing)],
    )


def write_reports(machine: Machine, folder: Path) -> None:
    """``report.txt``, ``report.json`` and ``report.html`` in a folder."""
    report = collect(machine)
    (folder / "report.txt").write_text(report.text(), encoding="utf-8")
    (folder / "report.json").write_text(report.json(), encoding="utf-8")
    (folder / "report.html").write_text(report.html(), encoding="utf-8")
