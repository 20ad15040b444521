"""How a judge in code is imported: what it prints, how long it takes, what it finds beside it, and which variables."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from code_judges import PATIENT, judged, trace

from judges.custom import DefinitionError, define
from judges.features.python import protocol as environment
from judges.features.python.importing import announced


class TestImported:
    """How the worker imports a judge for its description."""

    GOOD = "from judges.code import judge\n@judge\ndef good(trace) -> bool: return {}\n"

    def test_output_of_a_judge_s_import_goes_to_standard_error(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        noise = "import os\nprint('to sys.stdout')\nos.write(1, b'to the file')\n"
        (tmp_path / "judged.py").write_text(noise + self.GOOD.format("True"))
        define("good", {"code": f"{tmp_path / 'judged.py'}:good"})
        print("a document")  # noqa: T201 - what a command prints
        output = capfd.readouterr()
        assert output.out == "a document\n"
        assert ("to sys.stdout" in output.err, "to the file" in output.err) == (True, True)

    def test_a_judge_s_file_is_imported_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "judged.py"
        file.write_text(self.GOOD.format("True") + "also_good = good\n")
        first = define("good", {"code": f"{file}:good"})
        file.unlink()
        # Nothing else is changed, for threads may run by now.
        monkeypatch.setattr("judges.features.python.importing.as_judges_find_it", pytest.fail)
        assert define("good", {"code": f"{file}:good"}).version == first.version
        assert define("good", {"code": f"{file}:also_good"}).version == first.version

    def test_an_import_that_takes_long_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        told_so = threading.Event()
        caplog.handler.addFilter(lambda _: told_so.set() is None)
        with announced("judges.d/slow.py:good", after_s=0):
            assert told_so.wait(60)
        assert caplog.messages == ["importing judges.d/slow.py:good takes long: it runs until this ends"]

    def test_a_judge_may_import_modules_beside_its_file(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").write_text("RESULT = True\n")
        late = "def good(trace) -> bool:\n    import beside_late\n    return RESULT is beside_late.RESULT\n"
        (tmp_path / "beside_late.py").write_text("RESULT = True\n")
        (tmp_path / "judged.py").write_text(f"from judges.code import judge\nfrom beside import RESULT\n@judge\n{late}")
        before = list(sys.path)
        (assessment,) = judged(define("good", {"code": f"{tmp_path / 'judged.py'}:good", **PATIENT}), trace())
        assert assessment.scores[0].passed
        assert (sys.path, "beside" in sys.modules) == (before, False)

    def test_modules_beside_a_judge_s_file_are_imported_by_it_alone(self, tmp_path: Path) -> None:
        judges = {}
        for result in (True, False):
            folder = tmp_path / f"{result}"
            (folder / "shared").mkdir(parents=True)
            (folder / "shared" / "beside.py").write_text(f"RESULT = {result}\n")
            (folder / "judged.py").write_text(f"from shared.beside import RESULT\n{self.GOOD.format('RESULT')}")
            judges[result] = define("good", {"code": f"{folder / 'judged.py'}:good", **PATIENT})
        assert {result: judged(judge_, trace())[0].scores[0].passed for result, judge_ in judges.items()} == {
            True: True,
            False: False,
        }

    def test_modules_beside_a_judge_s_file_hide_no_installed_module(self, tmp_path: Path) -> None:
        (tmp_path / "wave.py").write_text("raise ValueError\n")
        (tmp_path / "judged.py").write_text(f"import wave\n{self.GOOD.format('bool(wave.open)')}")
        (assessment,) = judged(define("good", {"code": f"{tmp_path / 'judged.py'}:good", **PATIENT}), trace())
        assert assessment.scores[0].passed


class TestVariables:
    SECRETS = (
        "OPENAI_API_KEY",
        "shop_token",
        "DB_PASSWORD",
        "TRACEJUDGE_REDIS_URL",
        "GCP_CREDENTIALS",
        "PGPASS",
        "SHOP_AUTH",
        "OTEL_EXPORTER_OTLP_HEADERS",
    )

    def seen(self, folder: Path, **table: Any) -> set[str]:
        """Run a judge that returns the variables it finds."""
        text = "import os\nfrom judges.code import Score, judge\n@judge\ndef seen(trace) -> Score:\n"
        (folder / "judged.py").write_text(f"{text}    return Score(1, rationale=' '.join(os.environ))\n")
        (assessment,) = judged(define("seen", {"code": f"{folder / 'judged.py'}:seen", **PATIENT, **table}), trace())
        return set((assessment.rationale or "").split())

    @pytest.fixture(autouse=True)
    def _variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (*self.SECRETS, "NAMED_IN_THE_FILE"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("CACHE", "redis://:word@host/0")
        monkeypatch.setenv("SHOP_REGION", "eu")
        monkeypatch.setattr(environment, "_withheld", {"NAMED_IN_THE_FILE"})

    def test_a_judge_finds_those_that_are_no_secrets(self, tmp_path: Path) -> None:
        seen = self.seen(tmp_path)
        assert {"SHOP_REGION", "PATH"} <= seen
        assert seen & {*self.SECRETS, "NAMED_IN_THE_FILE", "CACHE"} == set()

    def test_a_table_passes_others_on(self, tmp_path: Path) -> None:
        assert {"shop_token", "CACHE"} <= self.seen(tmp_path, environment=["shop_token", "CACHE"])

    def test_importing_it_finds_the_same_ones(self, tmp_path: Path) -> None:
        before = dict(os.environ)
        (tmp_path / "judged.py").write_text(f"import os\nos.environ['DB_PASSWORD']\n{TestImported.GOOD}")
        table = {"code": f"{tmp_path / 'judged.py'}:good"}
        with pytest.raises(DefinitionError, match=r"KeyError: 'DB_PASSWORD' \(judged.py:2\)"):
            define("good", table)
        assert define("good", {**table, "environment": ["DB_PASSWORD"]}).name == "good"
        assert dict(os.environ) == before
