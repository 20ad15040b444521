"""Recording and alerting rules, and how they are written as the YAML that Prometheus reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

__all__ = ["Alert", "Group", "Recording", "text"]

_NOTE: Final = "# Written by `make generate` from deploy/prometheus/objectives.toml; change that, not this file.\n"


@dataclass(frozen=True)
class Recording:
    """A series that is computed beforehand."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Lay it out as Prometheus names its parts."""
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.record, "expr": self.expr, **labels}


@dataclass(frozen=True)
class Alert:
    """A condition that somebody is told of."""

    name: str
    expr: str
    holds: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    keep_firing_for: str | None = None

    def document(self) -> dict[str, Any]:
        """Lay it out as Prometheus names its parts."""
        document: dict[str, Any] = {"alert": self.name, "expr": self.expr, "for": self.holds}
        if self.keep_firing_for:
            document["keep_firing_for"] = self.keep_firing_for
        return {**document, "labels": dict(self.labels), "annotations": dict(self.annotations)}


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other, at the same moment."""

    name: str
    interval: str
    rules: tuple[Recording | Alert, ...]

    def document(self) -> dict[str, Any]:
        """Lay it out as Prometheus names its parts."""
        return {"name": self.name, "interval": self.interval, "rules": [rule.document() for rule in self.rules]}


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as such a block."""


def _write_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _write_text)


def text(groups: Iterable[Group]) -> str:
    """Write a file of rules."""
    document = {"groups": [group.document() for group in groups]}
    return _NOTE + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
