"""Names of the SDK's runtime, answered by the simulator."""

from wsesim.host.sdklayout import (
    Color,
    Edge,
    Route,
    RoutingPosition,
    SdkCompileArtifacts,
    SdkExecutionPlatform,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_edge_routing,
    get_platform,
)
from wsesim.host.sdkruntime import MemcpyDataType, MemcpyOrder, SdkRuntime, Task

__all__ = [
    "Color",
    "Edge",
    "MemcpyDataType",
    "MemcpyOrder",
    "Route",
    "RoutingPosition",
    "SdkCompileArtifacts",
    "SdkExecutionPlatform",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "Task",
    "get_edge_routing",
    "get_platform",
]
