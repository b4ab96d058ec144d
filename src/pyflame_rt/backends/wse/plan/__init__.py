"""Plans for the wafer: where values lie, what is fused, what the host moves."""
