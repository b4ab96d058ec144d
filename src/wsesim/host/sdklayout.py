"""``SdkLayout``: programs laid out from Python, region by region, with ports that are connected by routes.

Colours get physical values here: the colours of connected ports become one, every other colour its own. A connection
takes a shortest path through routers that do not use its colour yet.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.csl.program.elaborated import ColorConfig, Program, Switches, SwitchPosition
from wsesim.fabric.errors import ColorClash, HostError, NoRoute
from wsesim.fabric.routing import OPPOSITE, STEP
from wsesim.fabric.timing import ROUTABLE_COLORS
from wsesim.host.geometry import IntRectangle, IntVector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wsesim.csl.program.elaborated import PeProgram

__all__ = [
    "CodeRegion",
    "Color",
    "Edge",
    "Route",
    "RoutingPosition",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkLayout",
    "SdkTarget",
    "SimfabConfig",
    "get_edge_routing",
    "get_platform",
]

Place = tuple[int, int]


class SdkTarget(enum.Enum):
    """Architectures."""

    WSE2 = "wse2"
    WSE3 = "wse3"


class Route(enum.Enum):
    """Sides of a router."""

    RAMP = "RAMP"
    EAST = "EAST"
    WEST = "WEST"
    NORTH = "NORTH"
    SOUTH = "SOUTH"


class Edge(enum.Enum):
    """Sides of a region; the value is the side of the routers there."""

    TOP = "NORTH"
    BOTTOM = "SOUTH"
    LEFT = "WEST"
    RIGHT = "EAST"


@dataclass
class SimfabConfig:
    """Settings of the vendor's simulator.

    Attributes:
        dump_core: write the PEs' memories when the program stops, to ``corefile.cs1`` in its folder.
    """

    dump_core: bool = False


@dataclass(frozen=True)
class SdkExecutionPlatform:
    """Where a program runs: always this simulator."""

    target: SdkTarget
    config: SimfabConfig

    def is_simulation(self) -> bool:
        """True."""
        return True

    def is_system(self) -> bool:
        """False."""
        return False


def get_platform(
    cmaddr: str | None, config: SimfabConfig | None = None, target: SdkTarget = SdkTarget.WSE3
) -> SdkExecutionPlatform:
    """The simulator as a platform."""
    if cmaddr:
        raise HostError(f"cmaddr={cmaddr!r}: this is a simulator, it cannot reach a CS system; use the vendor's SDK")
    return SdkExecutionPlatform(target, config or SimfabConfig())


class Color:
    """A colour by name; its number is chosen when the layout is compiled, unless given."""

    def __init__(self, name: str, value: int | None = None) -> None:
        if value is not None and not 0 <= value < ROUTABLE_COLORS:
            raise HostError(f"colour {name!r}: {value} is not a routable colour (0 to {ROUTABLE_COLORS - 1})")
        self.name = name
        self.value = value
        self.scope = ""

    def get_global_name(self) -> str:
        """Name with the region it belongs to."""
        return f"{self.scope}_{self.name}" if self.scope else self.name

    def get_local_param_name(self) -> str:
        """Name of the parameter it sets."""
        return self.name

    def get_value(self) -> int | None:
        """Its number, once known."""
        return self.value


class RoutingPosition:
    """Sides from which and to which a colour is routed."""

    def __init__(self) -> None:
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()

    def set_input(self, routes: Sequence[Route]) -> RoutingPosition:
        """Sides to receive from."""
        self.inputs = tuple(r.value for r in routes)
        return self

    def set_output(self, routes: Sequence[Route]) -> RoutingPosition:
        """Sides to send to."""
        self.outputs = tuple(r.value for r in routes)
        return self


@dataclass(frozen=True)
class EdgeRouteInfo:
    """Routes for the PEs along one edge."""

    edge: Edge
    routes: tuple[RoutingPosition, ...]


def get_edge_routing(edge: Edge, routes: Sequence[RoutingPosition]) -> EdgeRouteInfo:
    """Routes for the PEs along one edge."""
    return EdgeRouteInfo(edge, tuple(routes))


def _config(routes: Sequence[RoutingPosition], rx: str | None = None, tx: str | None = None) -> ColorConfig:
    """A colour configuration from routing positions; ``rx`` or ``tx`` fill in the side that a port leaves open."""
    pairs = [(p.inputs or ((rx,) if rx else ()), p.outputs or ((tx,) if tx else ())) for p in routes]
    if not pairs:
        raise HostError("a route needs at least one routing position")
    if len(pairs) > 4:
        raise HostError(f"a colour has at most four routing positions, {len(pairs)} were given")
    switches = None
    if len(pairs) > 1:
        more = [SwitchPosition(rx=i, tx=o) for i, o in pairs[1:]]
        more += [SwitchPosition(invalid=True)] * (3 - len(more))
        switches = Switches((more[0], more[1], more[2]))
    return ColorConfig(rx=pairs[0][0], tx=pairs[0][1], switches=switches)


@dataclass
class PortHandle:
    """A port: a colour at the PEs along one edge of a region."""

    region: CodeRegion
    color: Color
    edge: Edge
    routes: tuple[RoutingPosition, ...]
    size: int
    is_input: bool
    prefix: str = ""

    def places(self) -> list[Place]:
        """Global places of the port's PEs."""
        dx, dy = self.region.origin
        return [(p.x + dx, p.y + dy) for p in self.region.edge(self.edge)]


@dataclass
class Stream:
    """A port that the host feeds or reads."""

    port: PortHandle

    def entry(self, program: Program) -> tuple[int, int, int]:
        """Place and colour of the port's only PE."""
        places = self.port.places()
        if len(places) != 1 or self.port.color.value is None:
            raise HostError(f"a stream needs a port of one PE; {self.port.color.name!r} has {len(places)}")
        x, y = places[0]
        if (x, y) not in program.tiles:
            raise HostError(f"there is no PE at ({x}, {y})")
        return x, y, self.port.color.value


class CodeRegion:
    """A rectangle of PEs with one source file."""

    def __init__(self, source: str, name: str, width: int, height: int) -> None:
        if width < 1 or height < 1:
            raise HostError(f"region {name!r}: {width} x {height} PEs")
        self.source = Path(source)
        self.name = name
        self.width = width
        self.height = height
        self.origin: Place = (0, 0)
        self.params: dict[Place, dict[str, int | Color]] = {p: {} for p in self._all()}
        self.painted: dict[Place, dict[Color, tuple[RoutingPosition, ...]]] = {p: {} for p in self._all()}
        self.ports: list[PortHandle] = []
        self.symbols: dict[str, NDArray[Any]] = {}

    def _all(self) -> list[Place]:
        return [(x, y) for y in range(self.height) for x in range(self.width)]

    def edge(self, edge: Edge) -> list[IntVector]:
        """Local places along an edge, west to east or north to south."""
        if edge in (Edge.TOP, Edge.BOTTOM):
            y = 0 if edge is Edge.TOP else self.height - 1
            return [IntVector(x, y) for x in range(self.width)]
        x = 0 if edge is Edge.LEFT else self.width - 1
        return [IntVector(x, y) for y in range(self.height)]

    def color(self, name: str, value: int | None = None) -> Color:
        """A colour that belongs to this region."""
        made = Color(name, value)
        made.scope = self.name
        return made

    def _inside(self, coord: IntVector) -> Place:
        if (coord.x, coord.y) not in self.params:
            raise HostError(
                f"({coord.x}, {coord.y}) is outside region {self.name!r} of {self.width} x {self.height} PEs"
            )
        return coord.x, coord.y

    def set_param(self, coord: IntVector, name: str | Color, value: int | Color | None = None) -> None:
        """A parameter of one PE."""
        self._set([self._inside(coord)], name, value)

    def set_param_all(self, name: str | Color, value: int | Color | None = None) -> None:
        """A parameter of all PEs."""
        self._set(self._all(), name, value)

    def set_param_range(self, rect: IntRectangle, name: str | Color, value: int | Color | None = None) -> None:
        """A parameter of some PEs."""
        self._set([self._inside(p) for p in rect.points()], name, value)

    def _set(self, places: list[Place], name: str | Color, value: int | Color | None) -> None:
        if isinstance(name, Color):
            name, value = name.get_local_param_name(), name
        if value is None:
            raise HostError(f"parameter {name!r} needs a value")
        for place in places:
            self.params[place][name] = value if isinstance(value, Color) else int(value)

    def paint(self, coord: IntVector, color: Color, routes: Sequence[RoutingPosition]) -> None:
        """Routes of a colour at one PE."""
        self.painted[self._inside(coord)][color] = tuple(routes)

    def paint_range(self, rect: IntRectangle, color: Color, routes: Sequence[RoutingPosition]) -> None:
        """Routes of a colour at some PEs."""
        for point in rect.points():
            self.paint(point, color, routes)

    def paint_all(
        self, color: Color, routes: Sequence[RoutingPosition], edge_routes: Sequence[EdgeRouteInfo] = ()
    ) -> None:
        """Routes of a colour at all PEs, and other ones along edges."""
        for x, y in self._all():
            self.paint(IntVector(x, y), color, routes)
        for info in edge_routes:
            for point in self.edge(info.edge):
                self.paint(point, color, info.routes)

    def place(self, x: int, y: int) -> None:
        """Where the region's first PE lies."""
        if x < 0 or y < 0:
            raise HostError(f"region {self.name!r} cannot be placed at ({x}, {y})")
        self.origin = (x, y)

    def create_input_port(
        self, color: Color, edge: Edge, routes: Sequence[RoutingPosition], data_size: int, prefix: str = ""
    ) -> PortHandle:
        """A port that receives; its routes name no inputs."""
        return self._port(color, edge, routes, data_size, prefix, is_input=True)

    def create_output_port(
        self, color: Color, edge: Edge, routes: Sequence[RoutingPosition], data_size: int, prefix: str = ""
    ) -> PortHandle:
        """A port that sends; its routes name no outputs."""
        return self._port(color, edge, routes, data_size, prefix, is_input=False)

    def _port(
        self, color: Color, edge: Edge, routes: Sequence[RoutingPosition], size: int, prefix: str, *, is_input: bool
    ) -> PortHandle:
        for routing in routes:
            if routing.inputs if is_input else routing.outputs:
                what = "input" if is_input else "output"
                raise HostError(f"port {color.name!r}: the routes of an {what} port must not name {what}s")
        port = PortHandle(self, color, edge, tuple(routes), size, is_input, prefix)
        if any(p.color is color and p.edge is edge and p.prefix == prefix for p in self.ports):
            raise HostError(f"region {self.name!r} has a port for {color.name!r} on that edge already")
        self.ports.append(port)
        return port

    def set_symbol_all(self, symbol: str, data: NDArray[Any], width: int, height: int) -> None:
        """Spreads a ``height`` by ``width`` array over the region, an equal block a PE."""
        if width % self.width or height % self.height:
            raise HostError(f"{width} x {height} elements cannot be spread over {self.width} x {self.height} PEs")
        self.symbols[symbol] = np.asarray(data).reshape(height, width)


@dataclass
class SdkCompileArtifacts:
    """A compiled layout: the program and the initial values of symbols, ``(x, y, name, bytes)``."""

    path: str
    program: Program | None = None
    values: list[tuple[int, int, str, bytes]] = field(default_factory=list)

    def __str__(self) -> str:
        return self.path


class SdkLayout:
    """A program as regions, ports and connections."""

    def __init__(self, platform: SdkExecutionPlatform | SdkTarget, *, msg_level: str = "WARNING") -> None:
        self.target = platform if isinstance(platform, SdkTarget) else platform.target
        self.msg_level = msg_level
        self.regions: list[CodeRegion] = []
        self.connections: list[tuple[PortHandle, PortHandle]] = []
        self.streams: list[Stream] = []

    def create_code_region(self, source: str, name: str, width: int, height: int) -> CodeRegion:
        """A new region."""
        if any(r.name == name for r in self.regions):
            raise HostError(f"there is a region {name!r} already")
        region = CodeRegion(source, name, width, height)
        self.regions.append(region)
        return region

    def connect(self, tx: PortHandle, rx: PortHandle) -> None:
        """Leads an output port to an input port."""
        if tx.is_input or not rx.is_input:
            raise HostError("connect takes an output port and an input port")
        if tx.size != rx.size:
            raise HostError(f"ports {tx.color.name!r} and {rx.color.name!r} differ in size: {tx.size} and {rx.size}")
        self.connections.append((tx, rx))

    def create_input_stream(self, port: PortHandle) -> Stream:
        """The host feeds this port."""
        return self._stream(port, is_input=True)

    def create_output_stream(self, port: PortHandle) -> Stream:
        """The host reads this port."""
        return self._stream(port, is_input=False)

    def _stream(self, port: PortHandle, *, is_input: bool) -> Stream:
        if port.is_input != is_input:
            raise HostError("an input stream needs an input port, an output stream an output port")
        stream = Stream(port)
        self.streams.append(stream)
        return stream

    # --- compilation -------------------------------------------------------------------------------------------------

    def compile(self, out_prefix: str) -> SdkCompileArtifacts:
        """Chooses colours, finds routes, elaborates the PE programs."""
        self._choose_colors()
        configs = self._routes()
        width = max((r.origin[0] + r.width for r in self.regions), default=1)
        height = max((r.origin[1] + r.height for r in self.regions), default=1)
        width = max([width, *(x + 1 for x, _ in configs)])
        height = max([height, *(y + 1 for _, y in configs)])
        programs, tiles = self._elaborate(width, height)
        colors = {place: dict(items) for place, items in configs.items()}
        for place, number in tiles.items():
            for color, config in programs[number].colors.items():
                if color in colors.setdefault(place, {}):
                    raise ColorClash(f"PE {place}: colour {color} is routed by the layout and by the program")
                colors[place][color] = config
        program = Program(self.target.value, width, height, tuple(programs), tiles, colors)
        return SdkCompileArtifacts(out_prefix, program, self._values())

    def _choose_colors(self) -> None:
        """Numbers for all colours; those of connected ports share one."""
        found: dict[Color, Color] = {}
        for region in self.regions:
            for params in region.params.values():
                for value in params.values():
                    if isinstance(value, Color):
                        found.setdefault(value, value)
            for painted in region.painted.values():
                for color in painted:
                    found.setdefault(color, color)
            for port in region.ports:
                found.setdefault(port.color, port.color)

        def leader(color: Color) -> Color:
            while found[color] is not color:
                color = found[color]
            return color

        for tx, rx in self.connections:
            found[leader(rx.color)] = leader(tx.color)
        groups: dict[Color, list[Color]] = {}
        for color in found:
            groups.setdefault(leader(color), []).append(color)
        used = {c.value for c in found if c.value is not None}
        free = iter(n for n in range(ROUTABLE_COLORS) if n not in used)
        for members in groups.values():
            fixed = {c.value for c in members if c.value is not None}
            if len(fixed) > 1:
                raise ColorClash(f"connected ports ask for different colours: {sorted(fixed)}")
            number = fixed.pop() if fixed else next(free, None)
            if number is None:
                raise ColorClash(f"the layout needs more than {ROUTABLE_COLORS} colours")
            for color in members:
                color.value = number

    def _routes(self) -> dict[Place, dict[int, ColorConfig]]:
        configs: dict[Place, dict[int, ColorConfig]] = {}
        ports = {(place, p.color) for r in self.regions for p in r.ports for place in p.places()}
        for region in self.regions:
            for (x, y), painted in region.painted.items():
                place = (x + region.origin[0], y + region.origin[1])
                for color, routes in painted.items():
                    if (place, color) not in ports:  # a port's own routes take the place of what was painted there
                        _put(configs, place, color, _config(routes))
        for stream in self.streams:
            port = stream.port
            side = "HOST" if not port.is_input else port.edge.value
            for place in port.places():
                given = _config(port.routes, rx=side) if port.is_input else _config(port.routes, tx=side)
                _put(configs, place, port.color, given)
        for tx, rx in self.connections:
            starts, ends = tx.places(), rx.places()
            if len(starts) != len(ends):
                raise HostError(f"ports {tx.color.name!r} and {rx.color.name!r} have {len(starts)} and {len(ends)} PEs")
            for start, end in zip(starts, ends, strict=True):
                _connect(configs, tx, rx, start, end)
        return configs

    def _elaborate(self, width: int, height: int) -> tuple[list[PeProgram], dict[Place, int]]:
        from wsesim.csl.program.driver import elaborate_pe

        programs: list[PeProgram] = []
        tiles: dict[Place, int] = {}
        known: dict[Any, int] = {}
        for region in self.regions:
            for (x, y), params in region.params.items():
                place = (x + region.origin[0], y + region.origin[1])
                if place in tiles:
                    raise HostError(f"two regions overlap at PE {place}")
                given = {n: ("color", v.value) if isinstance(v, Color) else v for n, v in params.items()}
                key = (region.source, tuple(sorted(given.items(), key=lambda item: item[0])))
                if key not in known:
                    known[key] = len(programs)
                    built = elaborate_pe(region.source, arch=self.target.value, params=given, rectangle=(width, height))
                    programs.append(built)
                tiles[place] = known[key]
        return programs, tiles

    def _values(self) -> list[tuple[int, int, str, bytes]]:
        out: list[tuple[int, int, str, bytes]] = []
        for region in self.regions:
            for name, data in region.symbols.items():
                rows, columns = data.shape[0] // region.height, data.shape[1] // region.width
                for x, y in region.params:
                    block = data[y * rows : (y + 1) * rows, x * columns : (x + 1) * columns]
                    image = np.ascontiguousarray(block).tobytes()
                    out.append((x + region.origin[0], y + region.origin[1], name, image))
        return out


def _put(configs: dict[Place, dict[int, ColorConfig]], place: Place, color: Color, config: ColorConfig) -> None:
    assert color.value is not None
    here = configs.setdefault(place, {})
    if color.value in here:
        raise ColorClash(f"PE {place}: colour {color.name!r} ({color.value}) is routed twice")
    here[color.value] = config


def _connect(
    configs: dict[Place, dict[int, ColorConfig]], tx: PortHandle, rx: PortHandle, start: Place, end: Place
) -> None:
    """Routes one PE of an output port to one PE of an input port."""
    number = tx.color.value
    assert number is not None
    path = _path(configs, number, start, end)
    steps = [_side(a, b) for a, b in pairwise(path)]
    if not steps:
        raise NoRoute(f"ports {tx.color.name!r} and {rx.color.name!r} are on one PE, {start}")
    _put(configs, start, tx.color, _config(tx.routes, tx=steps[0]))
    for place, came, goes in zip(path[1:-1], steps, steps[1:], strict=False):
        _put(configs, place, tx.color, ColorConfig(rx=(OPPOSITE[came],), tx=(goes,)))
    _put(configs, end, tx.color, _config(rx.routes, rx=OPPOSITE[steps[-1]]))


def _side(a: Place, b: Place) -> str:
    return next(side for side, (dx, dy) in STEP.items() if (a[0] + dx, a[1] + dy) == b)


def _path(configs: dict[Place, dict[int, ColorConfig]], color: int, start: Place, end: Place) -> list[Place]:
    """A shortest path through routers where the colour is free."""
    margin = 2
    right, bottom = max(start[0], end[0]) + margin, max(start[1], end[1]) + margin
    before: dict[Place, Place | None] = {start: None}
    work = deque([start])
    while work:
        here = work.popleft()
        if here == end:
            path = [here]
            while (previous := before[path[-1]]) is not None:
                path.append(previous)
            return path[::-1]
        for dx, dy in STEP.values():
            there = (here[0] + dx, here[1] + dy)
            inside = 0 <= there[0] <= right and 0 <= there[1] <= bottom
            if inside and there not in before and (there == end or color not in configs.get(there, {})):
                before[there] = here
                work.append(there)
    raise NoRoute(f"no free path for colour {color} from PE {start} to PE {end}")
