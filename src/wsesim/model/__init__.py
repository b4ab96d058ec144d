"""Scale on paper: what a program costs on grids too large to simulate."""

from wsesim.model.alone import Estimate, PredictionError, estimate
from wsesim.model.chart import chart
from wsesim.model.lines import LineCosts, measure_lines

__all__ = ["Estimate", "LineCosts", "PredictionError", "chart", "estimate", "measure_lines"]
