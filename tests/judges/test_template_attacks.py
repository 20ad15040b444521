"""Hostile traces through judges with published templates: requests keep their structure, nothing planted scores."""

import asyncio
import re

import pytest
from attacks import LIGHT
from judge_traces import parse
from support.cases import each_case
from template_parts import FACTS, asking, judge

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ModelSettings
from judges.core.prompt import neutralise
from judges.custom.template import KNOWN
from judges.models.scripted import ScriptedModel
from tracejudge import Trace

ROOMY = ModelSettings(provider="scripted", model="scripted", max_input_tokens=10_000_000)
JUDGES = {
    "as facts": judge(FACTS, {"answer": {"as": "facts_grounding"}}),
    "as facts in its own form": judge(FACTS, {"answer": {"as": "facts_grounding", "form": "template"}}),
    "all but references": asking(*(name for name in KNOWN if name not in {"doc", "ground_truth", "expected_output"})),
    "graded in its own form": asking("history", "answer", answer={"as": "graded", "form": "template"}),
    "three grades": asking("history", "input", "output", answer={"as": "relevance_truth_completeness"}),
    "one document": asking("question", "doc", result="boolean"),
}


def user_message(request: ChatRequest) -> str:
    return request.messages[1].content


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
@each_case("trace", LIGHT.values(), ids=LIGHT)
def test_an_echo_keeps_the_structure_and_scores_nothing(judge: Judge, trace: Trace) -> None:
    model = ScriptedModel([user_message], ROOMY)
    assessment = asyncio.run(evaluate(judge, trace, model))
    assert (assessment.outcome, assessment.reason) in {("unscored", "invalid_answer"), ("unscored", "missing_input")}
    shown = [tuple((block.name, neutralise(block.value)) for block in prompt.blocks) for prompt in judge.prompts(trace)]
    for request in model.requests:
        system, user, *_ = request.messages
        assert system.content in judge.fixed_parts
        assert tuple(map(tuple, parse(user.content))) in shown
        assert all(re.fullmatch(r"\w+(?: \w+)*", name) for name, _ in parse(user.content))
