"""Elaborated programs, and the driver that makes them from files."""
