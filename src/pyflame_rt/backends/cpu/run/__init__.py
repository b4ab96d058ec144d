"""Runs: plans for input shapes, found, kept, executed and cancelled."""
