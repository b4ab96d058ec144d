"""Names of the SDK, answered by the simulator; on the path of cs_python only."""
