"""Reliability diagrams: the share of labels that say pass, by the probability that the judge model gave."""

from typing import Final

from judges.agreement.reliability import Bin, Reliability
from judges.core.decision import Calibration

_COLUMNS: Final = 40
_SIDE: Final = 300
_LEFT: Final = 60
_TOP: Final = 20
_MAP_STEPS: Final = 100


def as_text(group: Bin) -> str:
    """Draw one bin on a line from 0 to 1: the interval of the share as dashes, the share as o, the mean as |."""
    share = group.passing
    low, middle, high, mean = (round(_COLUMNS * at) for at in (share.low, share.value, share.high, group.mean))
    line = [" "] * (_COLUMNS + 1)
    line[low : high + 1] = "-" * (high + 1 - low)
    line[mean] = "|"
    line[middle] = "o"
    return "".join(line)


def as_svg(reliability: Reliability, calibration: Calibration, title: str) -> str:
    """Draw the bins of uncorrected probabilities with intervals, the diagonal and the map; the title is escaped."""
    width, height = _LEFT + _SIDE + 20, _TOP + _SIDE + 60
    curve = " ".join(_at(step / _MAP_STEPS, calibration.apply(step / _MAP_STEPS)) for step in range(_MAP_STEPS + 1))
    marks = []
    for group in reliability.bins:
        ends = f"{_at(group.mean, group.passing.low)} {_at(group.mean, group.passing.high)}"
        x, y = _at(group.mean, group.passing.value).split(",")
        marks += [
            f'<polyline points="{ends}" stroke="#247" fill="none"/><circle cx="{x}" cy="{y}" r="3.5" fill="#247"/>'
        ]
    for tenths in range(0, 11, 2):
        x, bottom = _at(tenths / 10, 0).split(",")
        y = _at(0, tenths / 10).split(",")[1]
        marks += [
            f'<text x="{x}" y="{float(bottom) + 14:.1f}" text-anchor="middle">{tenths / 10:.1f}</text>',
            f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>',
        ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<title>{title}</title><g font-family="system-ui, sans-serif" font-size="11" fill="#555">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#ccc"/>',
        f'<polyline points="{_at(0, 0)} {_at(1, 1)}" stroke="#999" stroke-dasharray="4 4" fill="none"/>',
        f'<polyline points="{curve}" stroke="#c60" stroke-width="1.5" fill="none"/>',
        *marks,
        f'<text x="{_LEFT}" y="13">{title}</text>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{height - 24}" text-anchor="middle">probability by the judge model</text>',
        f'<text transform="translate(16 {_TOP + _SIDE / 2}) rotate(-90)" text-anchor="middle">labelled pass</text>',
        f'<text x="{_LEFT}" y="{height - 6}">dots: labels, with limits; dashed: exact; line: fitted map</text>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _at(probability: float, share: float) -> str:
    return f"{_LEFT + _SIDE * probability:.1f},{_TOP + _SIDE * (1 - share):.1f}"
