"""The version of a judge that explores: it changes with what its model is told of the tools, and by the loop."""

from dataclasses import replace

import pytest
from explorations import TRACE, exploring
from msgspec import structs
from support.cases import each_case

from judges.agent import conversation
from judges.core.exploration import Exploration
from judges.core.judge import Judge
from judges.core.model import Tool
from judges.custom import define
from judges.registry import catalogue

TABLE = {"instructions": "Is all well in {{ trace }}?"}


def with_tool(**changes: object) -> Judge:
    tool = structs.replace(Tool("read", "Reads.", {"type": "object"}), **changes)
    judge = exploring()
    assert judge.exploration is not None
    return replace(judge, exploration=structs.replace(judge.exploration, tools=(tool,)))


@each_case(
    "changes", [{"name": "look"}, {"description": "Looks."}, {"parameters": {}}], ids=["name", "description", "schema"]
)
def test_changes_with_a_tool(changes: dict[str, object]) -> None:
    assert with_tool(**changes).version != with_tool().version


def test_changes_with_what_the_loop_says(monkeypatch: pytest.MonkeyPatch) -> None:
    before, other = define("mine", TABLE).version, replace(catalogue()["safety"]).version
    monkeypatch.setattr("judges.custom.instructions.TEXTS", (*conversation.TEXTS, "More."))
    assert define("mine", TABLE).version != before
    assert replace(catalogue()["safety"]).version == other


def test_the_loop_says_nothing_else() -> None:
    public = {name: value for name, value in vars(conversation).items() if name.isupper() and name[0] != "_"}
    assert {*conversation.TEXTS, conversation.TOOL_RESULTS} == {
        text for text in public.values() if isinstance(text, str)
    }


def test_the_tools_are_those_of_the_toolbox() -> None:
    exploration = define("mine", TABLE).exploration
    assert isinstance(exploration, Exploration)
    assert tuple(exploration.open(TRACE).tools) == exploration.tools
