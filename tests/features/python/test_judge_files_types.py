"""Whatever stands behind a key of a judge: the start works, or is refused with one line, and never with a traceback."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import each_case
from support.tables import expand, read_table

from judges.custom import custom_prompt, instructions, template
from judges.custom.template_answer import AnswerTable
from judges.features.python import installed as code
from judges.registry import load_judges
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

PYTHON = "from judges.code import judge\n@judge(version='1')\ndef good(trace) -> bool:\n    return True\n"
TEMPLATE = """\
prompt:
  template: "Is {{response}} in {{%s}}?"
  template_variables: [response, %s]
"""
FOLDER = {"PATH": "", "TRACEJUDGE_JUDGES_FOLDER": "mine"}

TABLE = read_table(__file__, "key_values")
VALUES = [expand(text) for text in TABLE["values"]]
NEVER = set(TABLE["never"])
"""What belongs behind no key at all."""
BASES: Mapping[str, Mapping[str, str]] = TABLE["bases"]
"""Tables that define a judge, by keys and what stands behind each."""
_KINDS = (instructions.Definition, custom_prompt.Definition, template.Definition, code.Definition)
KEYS = sorted(
    {field.encode_name for kind in _KINDS for field in msgspec.structs.fields(kind)}
    | {f"answer.{field.encode_name}" for field in msgspec.structs.fields(AnswerTable)}
    | {*TABLE["results"], "result", "answer.x", "x", '""'}
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand above a folder of judges, with templates and a module."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/facts.yaml").write_text(TEMPLATE % (("context_document",) * 2), encoding="utf-8")
    Path("mine/doc.yaml").write_text(TEMPLATE % (("doc",) * 2), encoding="utf-8")
    Path("mine/good.py").write_text(PYTHON, encoding="utf-8")


def started(text: str) -> bool:
    """Start with a judge file; if that is refused, see that the line is one a person can use."""
    Path("mine/kind.toml").write_text(text, encoding="utf-8")
    try:
        judge = load_judges(load(FOLDER).judges)["kind"]
    except SettingsError as error:
        line = str(error)
        assert line.startswith("mine/kind.toml: ")
        assert line.isprintable()
        assert len(line) < 400
        return False
    assert len(judge.version) == 32
    return True


def written(table: Mapping[str, str]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in table.items())


def with_value(base: Mapping[str, str], key: str, value: str) -> str:
    """Put a value behind a key, in place of what stands there or below."""
    others = {name: other for name, other in base.items() if not f"{name}.".startswith(f"{key}.")}
    return written({**others, key: value})


@pytest.mark.endurance("tens of thousands of starts")
@each_case(("name", "key"), itertools.product(BASES, KEYS))
def test_a_value_of_any_type_starts_or_is_refused_in_one_line(name: str, key: str) -> None:
    assert not {value for value in VALUES if started(with_value(BASES[name], key, value))} & NEVER


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats() | TEXTS | st.dates() | st.times() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def toml(value: object) -> str:
    match value:
        case bool() | int() | float():
            return repr(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(sign):08X}" for sign in value) + '"'
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{toml(key)} = {toml(each)}' for key, each in value.items())} }}"
    return value.isoformat()  # type: ignore[attr-defined, no-any-return] # a date or a time


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*BASES]), st.data())
def test_no_value_breaks_the_start(name: str, data: st.DataObject) -> None:
    base = BASES[name]
    key = data.draw(st.sampled_from(KEYS) | st.just("") | TEXTS.map(toml))
    value = data.draw(st.sampled_from(VALUES) | JSON.map(toml))
    if key:
        assert not (started(with_value(base, key, value)) and value in NEVER)
    else:
        assert started(written(base)), "the base is valid"
