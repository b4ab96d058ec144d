"""Models on several devices: cut by data, model, pipeline or tensor; run on threads, processes or Ray actors."""

from pyflame_rt.partition import wse
from pyflame_rt.partition.config import DeviceSpec, DeviceType, PartitionConfig, PartitionStrategy, WSEChipConfig
from pyflame_rt.partition.cost import CostModel
from pyflame_rt.partition.executor import PartitionedExecutor
from pyflame_rt.partition.partitioner import GraphPartitioner, auto_partition
from pyflame_rt.partition.plan import Communication, Partition, PartitionAnalysis, PartitionPlan, PartitionStats

__all__ = [
    "Communication",
    "CostModel",
    "DeviceSpec",
    "DeviceType",
    "GraphPartitioner",
    "Partition",
    "PartitionAnalysis",
    "PartitionConfig",
    "PartitionPlan",
    "PartitionStats",
    "PartitionStrategy",
    "PartitionedExecutor",
    "WSEChipConfig",
    "auto_partition",
    "wse",
]
