"""Draws how the value of an account develops over an episode of the simulator `stocks`."""

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw

from simulators.base import Report

WIDTH, HEIGHT, MARGIN = 640, 360, 40
COLORS = {"account_value": "#1f77b4", "equal_weight_value": "#999999"}
"""Traces of a report that are drawn, and their colors."""
NAMES = {"account_value": "account", "equal_weight_value": "equal weight"}


def account_pictures(report: Report, pictures: int) -> Iterator[Image.Image]:
    """Yields pictures in which the lines grow from the first day to the last.

    Args:
        report: Report of an account that traded a whole split; its traces are in money.
        pictures: Number of pictures, at most one for each day.
    """
    traces = {name: report.traces[name] for name in COLORS if name in report.traces}
    days = len(traces["account_value"])
    dates = report.labels.get("date") or [""] * days
    low = min(min(values) for values in traces.values())
    high = max(max(values) for values in traces.values())
    for end in np.unique(np.linspace(1, days, min(pictures, days)).astype(int)).tolist():
        yield _drawn(traces, end, (low, high if high > low else low + 1.0), days, dates[end - 1])


def _drawn(traces: dict[str, list[float]], end: int, limits: tuple[float, float], days: int, date: str) -> Image.Image:
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    low, high = limits
    draw.rectangle((MARGIN, MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN), outline="#cccccc")
    for place, (name, values) in enumerate(traces.items()):
        draw.line(_points(values[:end], days, low, high), fill=COLORS[name], width=2)
        label = f"{NAMES[name]} {values[end - 1]:,.0f}"
        draw.text((MARGIN + 160 * place, 12), label, fill=COLORS[name])
    draw.text((WIDTH - MARGIN - 70, 12), date, fill="black")
    draw.text((4, MARGIN - 14), f"{high:,.0f}", fill="#666666")
    draw.text((4, HEIGHT - MARGIN + 2), f"{low:,.0f}", fill="#666666")
    return image


def _points(values: Sequence[float], days: int, low: float, high: float) -> list[tuple[float, float]]:
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    points = [
        (MARGIN + width * day / max(1, days - 1), HEIGHT - MARGIN - height * (value - low) / (high - low))
        for day, value in enumerate(values)
    ]
    return points if len(points) > 1 else points * 2
