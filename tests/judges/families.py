"""The families of judges by the form of their answer: two good answers of each, and what they score.

Every family is asked about the same trace. ``good`` and ``other`` differ in every score, so that a test can tell
which of two answers counted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from judge_traces import SHORT
from user_judges import BY_NAME, JUDGES, UserJudge

from judges.core.judge import Judge
from judges.forms import yes_no
from judges.registry import catalogue
from tracejudge import Document, Trace

__all__ = ["FAMILIES", "TRACE", "Family", "Scores", "members", "written"]

TRACE = Trace(
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    service="support-bot",
    input="How long is the warranty?",
    output="The warranty runs for two years. It is free of charge.",
    context=[
        "All devices come with a warranty of two years. It costs nothing at all.",
        Document("Shops open at nine."),
    ],
    expected_response="Two years, free of charge.",
    guidelines=["Answer in two sentences."],
    tool_calls=SHORT.tool_calls,
    tools=SHORT.tools,
)

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Family:
    """One form of answer.

    Attributes:
        judge: The judge that stands for the family in the tests.
        good: An answer with the best scores; ``parts`` of it are its objects, one but for JSON lines.
        text_key: A key of an answer, or of each of its objects, whose value is free text.
        verdict_key: A key whose value decides about the scores.
    """

    name: str
    judge: Judge
    good: tuple[Mapping[str, object], ...]
    other: tuple[Mapping[str, object], ...]
    good_scores: Scores
    other_scores: Scores
    text_key: str
    verdict_key: str

    @property
    def trace(self) -> Trace:
        """What all families are asked about."""
        return TRACE

    def __str__(self) -> str:
        return self.name

    @property
    def lines(self) -> bool:
        """Whether the answer is JSON lines."""
        return len(self.good) > 1

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an answer, or of each of its objects."""
        return tuple(self.good[0])

    @property
    def ends_bare(self) -> bool:
        """Whether the last value of an answer stands without quotation marks or brackets that would close it."""
        return isinstance(list(self.good[-1].values())[-1], bool | int | float)

    @property
    def needed(self) -> tuple[str, ...]:
        """The keys that may not be missing; an excerpt that is left out says the same as null."""
        return tuple(key for key in self.keys if key != "excerpt")

    def text(self, **changes: object) -> str:
        """Write the good answer, its objects changed."""
        return written([{**part, **changes} for part in self.good])

    def without(self, *keys: str) -> str:
        """Write the good answer without some keys."""
        return written([{key: value for key, value in part.items() if key not in keys} for part in self.good])


def written(parts: Sequence[Mapping[str, object]]) -> str:
    """Write objects as a good model does, one a line."""
    return "\n".join(json.dumps(part, ensure_ascii=False) for part in parts)


def _graded(grade: int, reasoning: str, *codes: str) -> dict[str, object]:
    return {
        f"{metric}{ending}": value
        for metric in ("relevance", "truth", "completeness")
        for ending, value in (
            ("", grade),
            ("Reasoning", reasoning),
            ("Reasons", [f"{metric}_reason_{code}" for code in codes]),
        )
    }


def _whole(keys: list[str], entries: list[dict[str, object]], *, supported: bool) -> dict[str, object]:
    return {
        "relevance_explanation": "The first document answers the question.",
        "all_relevant_sentence_keys": keys,
        "overall_supported_explanation": "Each claim was looked up in the documents.",
        "overall_supported": supported,
        "sentence_support_information": entries,
        "all_utilized_sentence_keys": keys if supported else [],
    }


def _entry(key: str, keys: list[str], *, supported: bool) -> dict[str, object]:
    return {
        "response_sentence_key": key,
        "explanation": "The documents say so.",
        "supporting_sentence_keys": keys,
        "fully_supported": supported,
    }


def _source(key: str, *, supported: bool) -> dict[str, object]:
    return {"sentence_key": key, "is_supported": supported, "explanation": "The documents say so."}


def _fact(sentence: str, label: str, excerpt: str | None) -> dict[str, object]:
    return {"sentence": sentence, "label": label, "rationale": "The context was read for it.", "excerpt": excerpt}


def _calls(verdict: str, **further: object) -> list[dict[str, object]]:
    reason = "It was looked at."
    return [{"call": key, "reason": reason, "verdict": verdict, **further} for key in ("C1", "C2", "C3")]


def _agents(judges: Mapping[str, Judge]) -> list[Family]:
    """Build the families of the judges of tools and trajectories, each of its own form."""
    why, missing = "It was looked at.", [{"reason": "It was looked at.", "tool": "open_case"}]
    problem = {"call": "C3", "reason": why, "problem": "claims_success"}
    goal = {"goal": "To know the warranty", "evidence": ["S1"], "reason": why}
    step = {"step": "Search the terms", "evidence": ["S1"], "reason": why}
    needless = [{"step": key, "reason": why} for key in ("S1", "S2", "S3")]
    rows: list[tuple[str, dict[str, object], dict[str, object], float, float]] = [
        (
            "tool_selection",
            *({"calls": _calls(verdict), "missing": missing} for verdict in ("right", "wrong")),
            *(0.75, 0.0),
        ),
        ("tool_arguments", *({"calls": _calls(verdict, argument="no")} for verdict in ("right", "wrong")), 1.0, 0.0),
        ("tool_result_use", {"problems": [], "result": "yes"}, {"problems": [problem], "result": "no"}, 1.0, 0.0),
        ("task_completion", *({"goals": [{**goal, "state": state}]} for state in ("done", "not_done")), 1.0, 0.0),
        (
            "plan_adherence",
            *({"plan": [{**step, "state": state}], "unplanned": ["C3"]} for state in ("followed", "skipped")),
            *(1.0, 0.0),
        ),
        # The code counts C2 anyway, which repeats C1.
        ("step_efficiency", {"needless": needless[1:2]}, {"needless": needless}, 2 / 3, 0.0),
    ]
    return [
        Family(name, judges[name], (good,), (other,), {name: best}, {name: worst}, "", next(iter(good)))
        for name, good, other, best, worst in rows
    ]


_FIRST, _SECOND = "The warranty runs for two years.", "It is free of charge."
_FACTS = (
    _fact(_FIRST, "supported", "All devices come with a warranty of two years."),
    _fact(_SECOND, "supported", "It costs nothing at all."),
)
_OTHER_FACTS = (_fact(_FIRST, "unsupported", None), _fact(_SECOND, "unsupported", None))
_THREE = ("relevance", "truth", "completeness")
_BEST_SHARES = {"relevance": 2 / 3, "utilization": 2 / 3, "completeness": 1.0, "adherence": 1.0}
_OTHER_SHARES = {"relevance": 1 / 3, "utilization": 0.0, "completeness": 0.0, "adherence": 0.0}
_FACT_SCORES = ({"grounded": 1.0, "supported_share": 1.0}, {"grounded": 0.0, "supported_share": 0.0})


def _by_user(name: str, defined: UserJudge) -> Family:
    good, other = (
        ({"rationale": f"Let's think step by step. {reason}", "result": result},)
        for reason, result in (("It is so.", defined.good), ("It is not.", defined.other))
    )
    scores = ({name: defined.good_score}, {name: defined.other_score})
    return Family(defined.family, JUDGES[name], good, other, *scores, "rationale", "result")


def _families() -> dict[str, Family]:
    judges = catalogue()
    three = judges["relevance_truth_completeness"]
    rows = [
        Family(
            "yes/no",
            judges["groundedness"],
            ({"rationale": "Let's think step by step. It is so.", "result": "yes"},),
            ({"rationale": "Let's think step by step. It is not.", "result": "no"},),
            {"groundedness": 1.0},
            {"groundedness": 0.0},
            "rationale",
            "result",
        ),
        Family(
            "graded",
            judges["answer_correctness"],
            ({"justification": "It is right but for a slip.", "score": 4},),
            ({"justification": "It is wrong in most.", "score": 2},),
            {"answer_correctness": 0.75},
            {"answer_correctness": 0.25},
            "justification",
            "score",
        ),
        Family(
            "three grades (long)",
            three,
            (_graded(4, "A little is off.", "other"),),
            (_graded(2, "Most of it is off.", "other"),),
            dict.fromkeys(_THREE, 0.75),
            dict.fromkeys(_THREE, 0.25),
            "truthReasoning",
            "truth",
        ),
        Family(
            "three grades (short)",
            three.configured({"reasoning": False}),
            ({"relevance": 4, "truth": 4, "completeness": 4},),
            ({"relevance": 2, "truth": 2, "completeness": 2},),
            dict.fromkeys(_THREE, 0.75),
            dict.fromkeys(_THREE, 0.25),
            "",
            "truth",
        ),
        Family(
            "ragbench",
            judges["ragbench"],
            (
                _whole(
                    ["0a", "0b"],
                    [_entry("a", ["0a"], supported=True), _entry("b", ["0b"], supported=True)],
                    supported=True,
                ),
            ),
            (_whole(["1a"], [_entry("a", [], supported=False), _entry("b", [], supported=False)], supported=False),),
            _BEST_SHARES,
            _OTHER_SHARES,
            "overall_supported_explanation",
            "overall_supported",
        ),
        Family(
            "ragbench_sources",
            judges["ragbench_sources"],
            (
                _whole(
                    ["D1_S1", "D1_S2"],
                    [_source("D1_S1", supported=True), _source("D1_S2", supported=True)],
                    supported=True,
                ),
            ),
            (_whole(["D2_S1"], [_source("D2_S1", supported=False)], supported=False),),
            _BEST_SHARES,
            _OTHER_SHARES,
            "overall_supported_explanation",
            "overall_supported",
        ),
        Family("facts_grounding", judges["facts_grounding"], _FACTS, _OTHER_FACTS, *_FACT_SCORES, "rationale", "label"),
        Family(
            "facts_grounding (one object)",
            judges["facts_grounding"],
            ({"sentences": list(_FACTS)},),
            ({"sentences": list(_OTHER_FACTS)},),
            *_FACT_SCORES,
            "",
            "sentences",
        ),
    ]
    rows += _agents(judges)
    rows += [_by_user(name, each) for name, each in BY_NAME.items()]
    return {family.name: family for family in rows}


FAMILIES: Mapping[str, Family] = _families()


def members(family: Family) -> Mapping[str, Judge]:
    """Return the judges of the same form; that of `guidelines` has a list more, which may be missing."""
    read = family.judge.read
    also = {"guidelines"} if read is yes_no.read else set()
    return {name: judge for name, judge in JUDGES.items() if judge.read is read or name in also}
