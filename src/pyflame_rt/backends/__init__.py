"""Backends: one folder each, none of which knows another."""
