"""An open CSL front end and a functional, cycle-counting simulator of the Cerebras wafer."""

__all__: list[str] = []
