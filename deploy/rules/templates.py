"""Placeholders ``<<name argument>>`` in the tables of alerts and dashboards; the head of ``alerts.toml`` lists them."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from textwrap import indent
from typing import Any, Final, get_args

import msgspec

from deploy.rules.alert_settings import FOLDER, Burn, Table, seconds
from judges.core.combine import Combine

Rule = dict[str, Any]  # A recording or alerting rule, as Prometheus reads it.

# Labels of a quality series. Others, as instance and job, are summed away: two workers count for one series.
SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
RATED: Final = (*SERIES, "metric")
_PANELS: Final = f"({'|'.join(get_args(Combine))})[(].*[)]"
PANELS: Final = f'judge_model=~"{_PANELS}"'
# Sums over all judge models leave panels out: the verdicts of a panel's members are already in the sum.
NO_PANELS: Final = f'judge_model!~"{_PANELS}"'

# A process may have started this much earlier: Prometheus finds it some time later, and clocks of hosts differ.
_START_TOLERANCE: Final = "5m"
_FORMS: Final[Mapping[str, tuple[float, str]]] = {
    "percent": (0.001, "humanizePercentage"),
    "count": (1, 'printf "%.0f"'),
    "points": (0.1, 'printf "%.1f"'),
    "rate": (0.1, 'printf "%.1f"'),
}
_ALERT: Final = re.compile(r"^## (TraceJudge\w+)$", re.MULTILINE)
_INNERMOST: Final = re.compile(r"<<((?:(?!<<|>>).)*)>>", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"([\w.]+)(?:\(([^)]*)\))?(?: (.*))?", re.DOTALL)


class TimeScale:
    """Writes durations divided by one number, so that a test runs through an hour in seconds."""

    def __init__(self, divisor: float = 1.0) -> None:
        self._divisor = divisor

    def __call__(self, duration: str) -> str:
        """Write a duration as Prometheus reads it."""
        if self._divisor == 1:
            return duration
        return f"{max(1, round(seconds(duration) * 1000 / self._divisor))}ms"

    def seconds(self, duration: str) -> float:
        """Return the scaled duration in seconds."""
        return seconds(duration) / self._divisor


def recording(name: str, expr: str, **labels: str) -> Rule:
    """Make a recording rule."""
    return {"record": name, "expr": expr, **({"labels": labels} if labels else {})}


def by(labels: Iterable[str], expression: str, how: str = "sum") -> str:
    """Aggregate an expression to some labels."""
    return f"{how} by ({', '.join(labels)}) (\n{indent(expression, '  ')}\n)"


def lines(*parts: str) -> str:
    """Join parts with line breaks."""
    return "\n".join(parts)


def full_increase(counter: str, window: str, time: TimeScale) -> str:
    """Return the growth of a counter in a window, with its first value and the growth while it was not scraped.

    ``increase`` ignores the first value it finds, and a counter with labels first appears with a value of 1 or more: a
    single failure would not be seen. So if the counter did not exist when the window began, the growth is the
    difference to its last value, or the whole value if that is smaller or if the counter is new.

    Not guaranteed: growth on a worker that was not scraped for longer than two windows is ignored.
    """
    scaled = time(window)
    before = f"last_over_time({counter}[{scaled}] offset {scaled})"
    longest = time.seconds(window) + time.seconds(_START_TOLERANCE)
    watched = time(f"{seconds(window) + seconds(_START_TOLERANCE):.0f}s")
    scrapes = f"max by (job, instance) (count_over_time(tracejudge_ready[{watched}]))"
    return lines(
        "(",
        f"  ({counter} - {before}) >= 0",
        "  or",
        f"  {counter} and {before}",
        # A new counter whose value was counted within the window: its process started within it, or its worker was
        # scraped before the counter appeared. Otherwise an old worker was only just found, by a new Prometheus or as a
        # new target, and no alert must fire for what it counted before. Not guaranteed: without `/proc` a worker has no
        # start time, so its first scrape is ignored.
        "  or",
        f"  {counter} and on (job, instance) (time() - process_start_time_seconds < {longest:g})",
        "  or",
        f"  {counter} and count_over_time({counter}[{scaled}]) < on (job, instance) group_left () {scrapes}",
        f") unless {counter} offset {scaled}",
        "or",
        f"increase({counter}[{scaled}])",
    )


class Template:
    """Fills in the placeholders of an alert or a panel, for one row of settings or for none."""

    def __init__(self, table: Table, time: TimeScale, path: str | None, texts: Mapping[str, str]) -> None:
        settings = {} if path is None else _lookup(table, path)
        self._table = table
        self._time = time
        self._window = getattr(settings, "window", "")
        self._texts = texts
        self.values = {
            "job": table.job,
            "with_runbook": _with_runbook(table.runbook_base),
            "min_judgements": str(table.min_judgements),
            # Judge models that only panels ask: the panel's verdict replaces theirs.
            "but_members": "unless on (judge, judge_model) tracejudge_panel_member",
            "no_panels": NO_PANELS,
            "panels": PANELS,
            "rated": ", ".join(RATED),
            "judged": ", ".join(SERIES),
        }
        for key, value in msgspec.to_builtins(settings).items():
            if key in ("window", "baseline", "for", "keep_firing_for"):
                self.values |= {key: time(value), f"{key}_name": value} if value else {}
            else:
                self.values[key] = f"{value:g}" if isinstance(value, float) else str(value)
            if key in {"bound", "unknown"}:
                self.values[f"{key}_percent"] = f"{value:.0%}"
        if self._window:
            self.values["window_s"] = f"{time.seconds(self._window):g}"
            self.values["half_window_s"] = f"{time.seconds(self._window) / 2:g}"
            self.values["quarter_window"] = time(f"{seconds(self._window) / 4:.0f}s")
        if isinstance(settings, Burn) and path is not None:
            self._add_burn(settings, path.rpartition(".")[2])

    def _add_burn(self, burn: Burn, speed: str) -> None:
        # The share below which a budget burns this fast.
        objective = by(RATED, 'tracejudge_quality_objective{segment=""}', "max")
        budget = f"(1 - {objective})"
        share = f"1 - {burn.factor:g} * {budget}"
        if any(speed in row.factors for row in self._table.objectives):
            own = f"1 - {budget} * on (judge, metric) group_left () tracejudge:burn_factor_{speed}"
            share = f"{own} or {share}"
        self.values |= {"speed": speed.title(), "least_share": share}
        window = burn.window
        now = ("<<now share>>", "<<highest>>", "<<now judgements>>")
        recorded = ("pass_share", "pass_share_upper", "effective_judgements")
        gauges = [f"tracejudge:{name}:{window}" for name in recorded] if window else now
        figure = f"max(tracejudge:pass_share:{window}{{}})" if window else "max(tracejudge_quality_share{})"
        length = f"the last {self._time(window)}" if window else "the last <<gauge_window>>"
        self.values |= {
            **dict(zip(("burn_share", "burn_upper", "burn_judgements"), gauges, strict=True)),
            "burn_figure": figure,
            "burn_window": length,
            "burn_text": f"In {length} <<figure(percent) {figure}>> passed; now " if window else "",
        }

    def __call__(self, text: str, alert: str = "") -> str:
        """Replace all placeholders, the innermost first."""
        values = self.values | {"alert": alert}
        while match := _INNERMOST.search(text):
            text = text[: match.start()] + self._filled(match[1], values) + text[match.end() :]
        return text

    def _filled(self, placeholder: str, values: Mapping[str, str]) -> str:
        match = _PLACEHOLDER.fullmatch(placeholder)
        if match is None:
            raise ValueError(f"<<{placeholder}>> is no placeholder")
        name, argument, body = match[1], match[2] or "", match[3] or ""
        if (text := values.get(name, self._texts.get(name))) is not None:
            return text.replace("<<argument>>", body)
        if "." in name:
            value = _lookup(self._table, name)
            return f"{value:g}" if isinstance(value, float) else str(value)
        match name:
            case "time":
                filled = self._time(argument)
            case "sum" | "max" | "min":
                filled = by(argument.split(", "), body, name)
            case "increase":
                filled = full_increase(body, self._window, self._time)
                filled = by(argument.split(", "), filled) if argument else filled
            case "total":
                filled = _figure(f"`round({body}", argument)
            case "figure":
                # Recorded series have no segment, and an empty matcher accepts that.
                matched = body.replace("{}", '{` $series `,segment=""}')
                filled = _figure(f"print `round({matched}", argument)
            case _:
                raise ValueError(f"there is no placeholder {name!r}; the head of alerts.toml lists them all")
        return filled


@cache
def _runbook_pages() -> Mapping[str, str]:
    """Return the page of docs/runbooks that has a heading for an alert, by the alert's name."""
    pages = sorted((FOLDER.parent / "docs" / "runbooks").glob("*.md"))
    headings = ((page.name, _ALERT.findall(page.read_text(encoding="utf-8"))) for page in pages)
    return {alert: name for name, alerts in headings for alert in alerts}


def runbook_url(base: str, alert: str) -> str:
    """Return the address of an alert's runbook."""
    return f"{base}/{_runbook_pages()[alert]}#{alert.lower()}"


def _with_runbook(base: str) -> str:
    # PromQL cannot write a name in lower case, as anchors are; browsers find the heading by its text.
    query = "<<argument>>"
    for page in sorted({*_runbook_pages().values()}):
        alerts = "|".join(alert for alert, name in _runbook_pages().items() if name == page)
        query = f'label_replace({query}, "runbook", "{base}/{page}#:~:text=$1", "alertname", "({alerts})")'
    return query


def one_line(text: str) -> str:
    """Join the lines of a text of a table."""
    return " ".join(text.strip().split("\n"))


def _lookup(table: Table, path: str) -> Any:
    value: Any = table
    for name in path.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _figure(query: str, form: str) -> str:
    step, shown = _FORMS[form]
    return f"{{{{ range query ({query}, {step})`) }}}}{{{{ .Value | {shown} }}}}{{{{ else }}}}?{{{{ end }}}}"
