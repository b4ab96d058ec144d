"""What a caller states before a graph is cut: strategy, devices, limits."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.names import AliasedEnum
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DeviceSpec",
    "DeviceType",
    "PartitionConfig",
    "PartitionStrategy",
    "WSEChipConfig",
    "count_of",
    "cpu_devices",
]

MAX_PARTS = 4096


class PartitionStrategy(AliasedEnum):
    """How work is divided.

    Example:
        >>> PartitionStrategy.DataParallel is PartitionStrategy.DATA_PARALLEL
        True
    """

    DATA_PARALLEL = "data"
    MODEL_PARALLEL = "model"
    PIPELINE_PARALLEL = "pipeline"
    TENSOR_PARALLEL = "tensor"
    AUTOMATIC = "auto"

    @classmethod
    def of(cls, value: object) -> PartitionStrategy:
        """The member for a member, its value or its name in any spelling.

        Example:
            >>> PartitionStrategy.of("pipeline")
            <PartitionStrategy.PIPELINE_PARALLEL: 'pipeline'>
        """
        if isinstance(value, cls):
            return value
        for member in cls:
            if isinstance(value, str) and value.lower() in (member.value, member.name.lower()):
                return member
        try:
            return getattr(cls, str(value))
        except AttributeError:
            known = ", ".join(m.value for m in cls)
            raise InputError(f"partition strategy {value!r} is not known. Strategies: {known}") from None


class DeviceType(AliasedEnum):
    """Where a part runs.

    Example:
        >>> DeviceType.Cpu is DeviceType.CPU
        True
    """

    CPU = "cpu"
    WSE = "wse"


@dataclass(slots=True)
class DeviceSpec:
    """A device that parts may be given to.

    Attributes:
        type: CPU, or WSE for a simulated wafer.
        device_id: its number; the parts of a plan are given out in the order of the devices.
        memory_bytes: weights and intermediate values it may hold; 0 for no limit.
        compute_flops: float operations a second; 0 takes the cost model's.
        name: for messages and pictures; made of type and number where empty.

    Example:
        >>> DeviceSpec(device_id=2).label
        'cpu:2'
    """

    type: DeviceType = DeviceType.CPU
    device_id: int = 0
    memory_bytes: int = 0
    compute_flops: float = 0.0
    name: str = ""

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or f"{self.type.value}:{self.device_id}"

    def check(self) -> None:
        """Refuse what cannot be meant."""
        if not isinstance(self.type, DeviceType):
            raise InputError(f"device {self.label!r}: type is a DeviceType, got {self.type!r}")
        for name in ("memory_bytes", "compute_flops"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise InputError(f"device {self.label!r}: {name} is a number from 0 on, got {number!r}")


@dataclass(slots=True)
class PartitionConfig:
    """How a graph is cut.

    Attributes:
        strategy: what :meth:`GraphPartitioner.partition` does.
        devices: where parts run, one part on each; CPU devices are made up where there are none.
        balance_compute: give devices equal shares of time; False looks at communication alone.
        minimize_communication: let few bytes cross between devices; False looks at balance alone.
        max_pipeline_stages: most stages of a pipeline; 0 takes one for each device.
        micro_batch_size: rows that go through a pipeline together; 0 chooses.
        batch_size: rows to expect where the model leaves the first size of an input open.
        sizes: other open sizes of the model by name; 1 where not given.
        batch_inputs: inputs whose first axis holds the rows; None finds them.

    Example:
        >>> PartitionConfig(strategy=PartitionStrategy.PIPELINE_PARALLEL).micro_batch_size
        0
    """

    strategy: PartitionStrategy = PartitionStrategy.AUTOMATIC
    devices: list[DeviceSpec] = field(default_factory=list)
    balance_compute: bool = True
    minimize_communication: bool = True
    max_pipeline_stages: int = 0
    micro_batch_size: int = 0
    batch_size: int = 32
    sizes: dict[str, int] = field(default_factory=dict)
    batch_inputs: Sequence[str] | None = None

    def check(self) -> None:
        """Refuse what cannot be meant."""
        self.strategy = PartitionStrategy.of(self.strategy)
        for device in self.devices:
            if not isinstance(device, DeviceSpec):
                raise InputError(f"PartitionConfig.devices holds DeviceSpecs, got {device!r}")
            device.check()
        labels = [d.label for d in self.devices]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise InputError(f"device {twice[0]!r} is given twice: each DeviceSpec has a device_id of its own")
        count_of(self.batch_size, "PartitionConfig.batch_size")
        for name in ("max_pipeline_stages", "micro_batch_size"):
            if getattr(self, name) != 0:
                count_of(getattr(self, name), f"PartitionConfig.{name}")
        for name, size in self.sizes.items():
            count_of(size, f"size {name!r}", 2**31)


@dataclass(slots=True)
class WSEChipConfig:
    """Several wafers in a grid, each linked to its neighbours.

    Attributes:
        topology: rows and columns of chips.
        inter_chip_bandwidth: bytes a second between neighbours.
        inter_chip_latency: nanoseconds from neighbour to neighbour.
        chip_memory_bytes: weights and intermediate values a chip may hold.
        target: "wse2" or "wse3".
        grid: rows and columns of PEs used of a chip; None takes what each part needs.

    Example:
        >>> WSEChipConfig(topology=[2, 2]).num_chips
        4
    """

    topology: Sequence[int] = (1, 2)
    inter_chip_bandwidth: float = 1e12
    inter_chip_latency: float = 100.0
    chip_memory_bytes: int = 40 * 2**30
    target: str = "wse3"
    grid: tuple[int, int] | None = None

    @property
    def num_chips(self) -> int:
        """How many chips there are."""
        return math.prod(self.topology)

    def check(self) -> None:
        """Refuse what cannot be meant."""
        shape = list(self.topology)
        if len(shape) != 2:
            raise InputError(f"WSEChipConfig.topology is rows and columns of chips, got {self.topology!r}")
        for size in shape:
            count_of(size, "WSEChipConfig.topology")
        for name in ("inter_chip_bandwidth", "inter_chip_latency", "chip_memory_bytes"):
            positive(getattr(self, name), f"WSEChipConfig.{name}")

    def position(self, chip: int) -> tuple[int, int]:
        """Row and column of a chip; consecutive ones are neighbours (rows are walked to and fro)."""
        cols = int(self.topology[1])
        row, col = divmod(chip, cols)
        return row, col if row % 2 == 0 else cols - 1 - col

    def hops(self, a: int, b: int) -> int:
        """Links between two chips."""
        (y, x), (v, u) = self.position(a), self.position(b)
        return abs(y - v) + abs(x - u)


def count_of(value: Any, what: str, most: int = MAX_PARTS) -> int:
    """A whole number from 1 on, or an error that says what it is for."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= int(value) <= most:
        raise InputError(f"{what} is a whole number from 1 to {most}, got {value!r}")
    return int(value)


def positive(value: Any, what: str) -> float:
    """A number above 0, or an error that says what it is for."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(f"{what} is a number above 0, got {value!r}")
    return float(value)


def cpu_devices(count: int) -> list[DeviceSpec]:
    """CPU devices numbered from 0.

    Example:
        >>> [d.label for d in cpu_devices(2)]
        ['cpu:0', 'cpu:1']
    """
    return [DeviceSpec(DeviceType.CPU, i) for i in range(count)]
