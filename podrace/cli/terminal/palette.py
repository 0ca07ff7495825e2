"""Defines the colors of plots and drawings."""

CHAMPION_COLOR = "#0b6e4f"


BASELINE_COLOR = "#9a9a9a"


FAMILY_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#6a3d9a")
"""Distinguishable with color blindness (Okabe and Ito 2008, and two more)."""


OTHER_FAMILIES_COLOR = "#bbbbbb"
