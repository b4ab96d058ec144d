"""An open CSL front end and a functional, cycle-counting simulator of the Cerebras wafer."""

__version__ = "1.0.0-alpha"

__all__ = ["__version__"]
