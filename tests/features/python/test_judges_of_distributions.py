"""Judges that an installed distribution brings."""

from pathlib import Path

import pytest
from support.cli_parts import IN_CODE, Run
from support.own_judges import POLITE, write_own_judges

from judges.features.python.installed import installed


def test_a_judge_of_a_distribution_names_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    write_own_judges()
    info = tmp_path / "our_judges-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-judges\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[tracejudge.judges]\nshort = judges_of_ours:short\n", encoding="utf-8")
    (tmp_path / "judges_of_ours.py").write_text(IN_CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    request.addfinalizer(installed.cache_clear)
    installed.cache_clear()
    (row,) = (row for row in run("judges", "--json").document if row["name"] == "short")
    assert row["origin"] == "distribution our-judges"
    assert run("judges", "show", "short", "--json").document["origin"] == "distribution our-judges"
    Path("mine/short.toml").write_text(POLITE, encoding="utf-8")
    assert run("judges").complaint == (
        "tracejudge: mine/short.toml: has the name of a judge of an installed distribution; rename it, or "
        "uninstall our-judges"
    )
