"""`make agreement`: a model of the configuration is measured on all labelled traces."""

import json
import re
import sys
from pathlib import Path

import pytest

from docs import agreement


def test_a_configured_model_gets_a_section_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, sections = tmp_path / "tracejudge.toml", tmp_path / "agreement.json"
    config.write_text('[models.small]\nprovider = "lexical"\nlabel = "mine"\n')
    sections.write_text('{"mine": "old", "other": "\\n## `other`\\n"}')
    monkeypatch.setenv("TRACEJUDGE_CONFIG", str(config))
    monkeypatch.setattr(agreement, "_SECTIONS", sections)
    monkeypatch.setattr(sys, "argv", ["docs.agreement", "small", "2", "Too small to rely on."])
    agreement.main()
    written = json.loads(sections.read_text())
    assert list(written) == ["mine", "other"]
    section = written["mine"]
    assert re.search(
        r"Measured on 20\d\d-\d\d-\d\d on at most 2 of the traces .* Too small to rely on\.$", section, re.MULTILINE
    )
    rows = re.findall(r"^\| `(\w+)` .* \| (\d+) / (\d+) \| (\d+) \| \S+ \|$", section, re.MULTILINE)
    assert [judge for judge, *_ in rows] == [asked.judge for asked in agreement.ASKED]
    assert all(int(yes) + int(no) + int(others) == 4 for _, yes, no, others in rows)
    page = agreement.page()
    assert section in page
    of_agents = re.findall(
        r"^\| `(\w+)` .* \| `\1` \| (\d+) / (\d+) \| (\d+) \|", page.partition("## `mine`")[0], re.MULTILINE
    )
    assert sum(sum(map(int, counts)) for _, *counts in of_agents[-6:]) == 72
