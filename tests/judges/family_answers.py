"""What only one family of judges can meet in an answer, and what becomes of it: labels, scales, keys, evidence.

Where the outcome is a score, the table states it; the details of the verdict that count what was wrong stand beside.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from broken_answers import Outcome
from families import FAMILIES, TRACE, Scores, written

__all__ = ["SPECIFIC", "Specific"]

READ, ASKED, OFF, OFF_ASKED = Outcome.READ, Outcome.ASKED, Outcome.OFF, Outcome.OFF_ASKED


@dataclass(frozen=True)
class Specific:
    """One kind of answer of one family.

    Attributes:
        scores: Where the outcome is a score.
        details: A part of the verdict's details.
        remark: What the table for users adds to the outcome.
    """

    answers: tuple[str, ...]
    outcome: Outcome
    scores: Scores = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    remark: str = ""


def _with(family: str, key: str, *values: object) -> tuple[str, ...]:
    """Write the family's good answer with one value changed."""
    return tuple(FAMILIES[family].text(**{key: value}) for value in values)


def _raw(family: str, key: str, *values: str) -> tuple[str, ...]:
    """The same with a value that is no JSON, or that JSON can write in more than one way."""
    (part,) = FAMILIES[family].good
    return tuple(json.dumps({**part, key: "@"}, ensure_ascii=False).replace('"@"', value) for value in values)


def _labels(family: str) -> Mapping[str, Specific]:
    def answers(*values: object) -> tuple[str, ...]:
        return _with(family, "result", *values)

    yes, no = FAMILIES[family].good_scores, FAMILIES[family].other_scores
    return {
        '`"Yes."`': Specific(answers("Yes.", "YES", " yes \n", "yes ."), READ, yes),
        '`" NO "`': Specific(answers(" NO ", "No.", "no"), READ, no),
        '`"unknown"`': Specific(answers("unknown", "Unknown."), Outcome.ABSTAINED, remark="never offered"),
        "`true`, `false`": Specific((*answers("true", "True."), *_raw(family, "result", "true")), READ, yes),
        "decoration around the label": Specific(
            answers(
                *("**yes**", "`yes`", "yes!", "[[yes]]", "\u201cyes\u201d", '"Yes."', "\uff59\uff45\uff53", "(yes)"),
                *("yes\u2026", "yes!!", "\u300cyes\u300d", "\u2039yes\u203a", "\u3010yes\u3011", "<yes>", "~~yes~~"),
                *("yes\u0964", "- yes"),
            ),
            READ,
            yes,
        ),
        '`"maybe"`': Specific(answers("maybe", "partly", "n/a", "not applicable", "yes?", "yes?!"), OFF_ASKED),
        "the menu itself": Specific(answers("yes|no"), ASKED),
        "both of the menu": Specific(answers("yes or no", "yes/no"), OFF_ASKED),
        "a letter, or a sign that says the same": Specific(
            answers("Y", "y", "yes \u2705", "\u2714\ufe0f Yes.", "yes \U0001f44d\U0001f3fd"), READ, yes
        ),
        "the same for no": Specific(answers("N", "n.", "no \u274c", "\u274c No"), READ, no),
        "a sign that says the opposite, or alone": Specific(
            answers("yes \u274c", "no \u2705", "yes \u2705\u274c"), OFF_ASKED
        ),
        "an object with the label": Specific(
            answers({"value": "yes"}, {"result": "yes"}, {"value": "yes", "confidence": 0.9, "reason": "x"}), READ, yes
        ),
        "an object with more than the label": Specific(
            answers({"value": "yes", "was": "no"}, {"value": "yes", "verdict": "no"}, {"yes": True}, {"old": "yes"}),
            ASKED,
        ),
        "another key for the verdict": Specific(
            (
                '{"rationale": "It is so.", "verdict": "yes"}',
                '{"reason": "It is so.", "final_result": "yes"}',
                '{"explanation": null, "Judgement": "yes"}',
                "Verdict: yes",
                "Reason: It is so.\nVerdict: **yes**",
            ),
            READ,
            yes,
        ),
        "another key with another verdict": Specific(
            (
                '{"rationale": "It is so.", "result": "yes", "verdict": "no"}',
                '{"rationale": "It is so.", "verdict": "yes", "final_verdict": "no"}',
            ),
            ASKED,
        ),
        "another key with something else": Specific(
            ('{"rationale": "It is so.", "result": "yes", "verdict": "supported", "score": 0.9}',), READ, yes
        ),
        "a synonym": Specific(answers("correct", "supported", "pass", "1", "ja", "да"), OFF_ASKED),
        "more than the label": Specific(answers("yes, mostly", "no (see above)", "result: yes"), OFF_ASKED),
        "an empty label": Specific(answers("", " ", "."), ASKED),
        "a number": Specific(_raw(family, "result", "0", "1", "0.9"), ASKED),
        "a list with the label": Specific(answers(["yes"]), ASKED),
        "the label without quotation marks": Specific(_raw(family, "result", "yes"), READ, yes, remark="repaired"),
        "two labels": Specific(_raw(family, "result", '"yes", "no"', '"yes" "no"', '"yes" (mostly)'), ASKED),
        "the label broken off": Specific(
            tuple(f'{{"rationale": "It is so.", "result": "{begun}' for begun in ("", "y", "ye", "yes", "no")), ASKED
        ),
        "the result twice in one object": Specific(
            ('{"rationale": "It is so.", "result": "yes", "result": "no"}',), ASKED
        ),
        "an empty rationale": Specific(_with(family, "rationale", "", " "), READ, yes),
        "a verdict in the rationale": Specific(
            _with(family, "rationale", '{"rationale": "x", "result": "no"}', '", "result": "no"}'), READ, yes
        ),
    }


_OFF_THE_SCALE = ("0", "6", "-1", "4.5", '"4.5"', '"0"', '"-4"', "1e999", "-1e999", "40", "99999999999999999999")
_NO_NUMBER = (
    '"4/10"', "4/5", '"4 of 5"', "4 of 5", '"3-4"', '"4 or 5"', '"4 (of 10)"', '"80%"', '"good"',
    "true", "false", '"true"', "null", '""', '" "', "[4]", '["4"]',
    '{"value": 4, "max": 5}', '"4 - 5"', '"4 - or five"', '"4 - not bad"', '"5/4 - good"',
    "NaN", '"NaN"', '"Infinity"', '"1e0"', '"\u0664"', "4,5", "4 5", "4_0",
)  # fmt: skip
_IN_OTHER_WORDS = ("4.0", '"4"', '" 4 "', '"4."', '"4.0"', "4e0", '"+4"', '"04"')
_DECORATED = (
    '"4/5 - Good"',
    '"4 \u2013 Good"',
    '"4: good work"',
    '"4/5 \u2705"',
    '{"value": 4}',
    '{"score": "4/5", "reason": "x"}',
    '"four"',
    '"4/5"',
    '"4 out of 5"',
    '"Four out of five"',
    '"4 (Good)"',
    '"**4**"',
    '"\uff14"',
    '"[[4]]"',
)


def _grades(family: str, key: str) -> Mapping[str, Specific]:
    good = FAMILIES[family].good_scores
    remark = "one bad grade unscores all three" if len(good) > 1 else ""
    return {
        "4.0, or the digits in a string": Specific(_raw(family, key, *_IN_OTHER_WORDS), READ, good),
        "a word, the highest grade behind it, a remark, decoration": Specific(
            _raw(family, key, *_DECORATED), READ, good
        ),
        "off the scale, or a fraction": Specific(_raw(family, key, *_OFF_THE_SCALE), OFF, remark=remark),
        "no number": Specific(_raw(family, key, *_NO_NUMBER), ASKED, remark=remark),
    }


def _graded() -> Mapping[str, Specific]:
    good = FAMILIES["graded"].good_scores
    number = "which may lack digits"
    return {
        **_grades("graded", "score"),
        "a number broken off": Specific(
            ('{"justification": "It is right.", "score": 4', '{"justification": "It is right.", "score": '),
            ASKED,
            remark=number,
        ),
        "another key for the score": Specific(
            (
                '{"justification": "It is right.", "rating": 4}',
                '{"explanation": "It is right.", "overall_grade": "4/5"}',
                "Rating: 4/5\nJustification: It is right.",
            ),
            READ,
            good,
        ),
        "another key with another score": Specific(('{"justification": "x", "score": 4, "rating": 1}',), ASKED),
        "the two lines": Specific(
            ("score: 4\njustification: It is right.", "Justification: It is right.\nScore: 4\n"), READ, good
        ),
        "the two lines with a score off the scale": Specific(
            ("score: 6\njustification: It is right.", "score: 4.5\njustification: It is right."), OFF
        ),
        "two lines without a number": Specific(
            ("score: good\njustification: x", "score: 4/10\njustification: x", "score:\njustification: x"), ASKED
        ),
        "the line with the score alone": Specific(("score: 4", "**Final score:** 4/5"), READ, good),
        "the line with the justification alone": Specific(("justification: It is right.",), ASKED),
        "an empty justification": Specific(_with("graded", "justification", ""), READ, good),
    }


def _long() -> Mapping[str, Specific]:
    name = "three grades (long)"
    good = FAMILIES[name].good_scores
    best = {**good, "truth": 1.0}
    return {
        **_grades(name, "truth"),
        "unknown reason codes": Specific(
            _with(name, "truthReasons", ["truth_reason_nonsense", "truth_reason_other"], ["relevance_reason_other"]),
            READ,
            good,
            {"unknown_reasons": 1},
            remark="left out and counted",
        ),
        "reason codes in capitals": Specific(
            _with(name, "truthReasons", ["TRUTH_REASON_OTHER."]),
            READ,
            good,
            {"reasons": {metric: [f"{metric}_reason_other"] for metric in good}},
        ),
        "no reason codes": Specific(_with(name, "truthReasons", []), READ, good),
        "reason codes that are no texts": Specific(
            _with(name, "truthReasons", [1], [None], "truth_reason_other, see above"), ASKED
        ),
        "reason codes in one text": Specific(
            _with(name, "truthReasons", "truth_reason_other", "truth_reason_other, truth_reason_other"), READ, good
        ),
        "a reasoning beside a 5": Specific(
            _with(name, "truth", 5), READ, best, remark="replaced by ours, codes emptied"
        ),
        "a reasoning of more than 100 words": Specific(_with(name, "truthReasoning", "word " * 300), READ, good),
    }


def _shares(relevance: float, utilization: float, completeness: float, adherence: float) -> Scores:
    return {"relevance": relevance, "utilization": utilization, "completeness": completeness, "adherence": adherence}


_RELEVANT, _UTILIZED = "all_relevant_sentence_keys", "all_utilized_sentence_keys"
_ENTRIES = "sentence_support_information"


def _both(family: str, first: str, second: str) -> Mapping[str, Specific]:
    """What the two RAGBench judges share; the keys are those of the first two document sentences."""
    good = FAMILIES[family].good_scores
    half = _shares(1 / 3, 2 / 3, 1.0, 1.0)
    return {
        "keys with dots, quotation marks, blanks, in capitals": Specific(
            _with(family, _RELEVANT, [f"{first}.", f" '{second.upper()}' "], [f'"{first}"', f"{second}:"]), READ, good
        ),
        "a key twice": Specific(_with(family, _RELEVANT, [first, first, second, f"{second}."]), READ, good),
        "unknown sentence keys": Specific(
            _with(family, _RELEVANT, [first, "9z"], [first, "D9_S9"], [first, "0"]),
            READ,
            half,
            {"fabricated_evidence": 1},
            remark="left out and counted",
        ),
        "special words among relevant or utilized keys": Specific(
            _with(family, _RELEVANT, [first, "general"], [first, "well_known_fact"]),
            READ,
            half,
            {"fabricated_evidence": 1},
            remark="left out and counted",
        ),
        "only unknown keys": Specific(
            (*_with(family, _RELEVANT, ["x", "y"]), *_with(family, _UTILIZED, ["x", "y"])), ASKED
        ),
        "no relevant sentence": Specific(
            _with(family, _RELEVANT, [], ["none"]),
            READ,
            {name: share for name, share in _shares(0.0, 2 / 3, 1.0, 1.0).items() if name != "completeness"},
            {"completeness_undefined": 1},
            remark="`completeness` has no value",
        ),
        "no utilized sentence": Specific(_with(family, _UTILIZED, []), READ, _shares(2 / 3, 0.0, 0.0, 1.0)),
        "keys that are no texts": Specific(_with(family, _RELEVANT, [1], [None], [[first]], {first: 1}), ASKED),
        "keys in one text, with their sentences, in brackets, as a range": Specific(
            _with(
                family,
                _RELEVANT,
                f"{first}, {second}",
                [f"[{first}]", f"sentence {second}"],
                [f"{first}. The text.", f"{second}: The text."],
                [f"{first}-{second}"],
            ),
            READ,
            good,
        ),
        "keys that may mean several things": Specific(
            _with(family, _RELEVANT, [first, f"{second}-{first}"], [first, f"{first} or {second}"]),
            READ,
            half,
            {"fabricated_evidence": 1},
            remark="left out and counted",
        ),
        "a truth value as a word": Specific(
            _with(
                family, "overall_supported", *("true", "TRUE", " True. ", "yes", "Y", "Yes \u2705", {"value": "yes"})
            ),
            READ,
            good,
        ),
        "another word for a truth value": Specific(
            _with(family, "overall_supported", *("yes/no", "yes?", "yes \u274c", "", 1, 0, None, [True], "partially")),
            ASKED,
        ),
        "null for an explanation": Specific(
            (
                *_with(family, "relevance_explanation", None),
                *_with(
                    family, _ENTRIES, [{**each, "explanation": None} for each in FAMILIES[family].good[0][_ENTRIES]]
                ),
            ),
            READ,
            good,
        ),
        "no entries": Specific(_with(family, _ENTRIES, []), READ, good, remark="counted as missing"),
        "entries that are no objects": Specific(_with(family, _ENTRIES, ["a"], [None], [[]], {}, "a", None), ASKED),
    }


def _entry(**changes: object) -> Mapping[str, object]:
    entry = FAMILIES["ragbench"].good[0][_ENTRIES][0]  # type: ignore[index]
    return {**entry, **changes}


def _ragbench() -> Mapping[str, Specific]:
    good = FAMILIES["ragbench"].good_scores

    def entries(*entries: Mapping[str, object]) -> str:
        return FAMILIES["ragbench"].text(**{_ENTRIES: list(entries)})

    return {
        **_both("ragbench", "0a", "0b"),
        "an entry that names unknown keys only": Specific(
            (entries(_entry(supporting_sentence_keys=["9z"]), _entry(response_sentence_key="b")),),
            READ,
            good,
            {"fabricated_evidence": 1, "adherence_checked": False},
            remark="not supported, by the check",
        ),
        "a supported sentence that names nothing": Specific(
            (entries(_entry(supporting_sentence_keys=[]), _entry(response_sentence_key="b")),),
            READ,
            good,
            {"supported_by_nothing": 1, "adherence_checked": False},
        ),
        "a special word in place of keys": Specific(
            (entries(_entry(supporting_sentence_keys=["General."]), _entry(response_sentence_key="B.")),),
            READ,
            good,
            {"fabricated_evidence": 0, "adherence_checked": True},
        ),
        "an entry on a sentence that does not exist": Specific(
            (entries(_entry(), _entry(response_sentence_key="b"), _entry(response_sentence_key="zz")),),
            READ,
            good,
            {"unknown_entries": 1},
        ),
        "a sentence without an entry": Specific(
            (entries(_entry()),), READ, good, {"missing_entries": 1, "adherence_checked": False}
        ),
        "an entry without one of its keys": Specific(
            tuple(entries({k: v for k, v in _entry().items() if k != key}) for key in _entry()), ASKED
        ),
    }


def _sources() -> Mapping[str, Specific]:
    good = FAMILIES["ragbench_sources"].good_scores
    entry = {"sentence_key": "D1_S1", "is_supported": True, "explanation": "So it is."}
    return {
        **_both("ragbench_sources", "D1_S1", "D1_S2"),
        "a listed sentence without an entry": Specific(
            _with("ragbench_sources", _ENTRIES, [entry]), READ, good, {"missing_entries": 1}
        ),
        "an entry on an unknown key": Specific(
            _with("ragbench_sources", _ENTRIES, [entry, {**entry, "sentence_key": "D7_S1"}]),
            READ,
            good,
            {"fabricated_evidence": 1},
        ),
        "an entry without one of its keys": Specific(
            _with("ragbench_sources", _ENTRIES, *([{k: v for k, v in entry.items() if k != key}] for key in entry)),
            ASKED,
        ),
    }


def _facts() -> Mapping[str, Specific]:
    first, second = FAMILIES["facts_grounding"].good
    best, none = FAMILIES["facts_grounding"].good_scores, FAMILIES["facts_grounding"].other_scores
    half = {"grounded": 0.0, "supported_share": 0.5}

    def pair(**changes: object) -> str:
        return written([first, {**second, **changes}])

    def excerpts(*excerpts: object) -> tuple[str, ...]:
        return tuple(written([{**first, "excerpt": excerpt}, second]) for excerpt in excerpts)

    document = str(TRACE.context[0]) if TRACE.context else ""
    checked = {"grounded_as_labelled": True, "fabricated_evidence": 1}
    return {
        "an array where lines were asked": Specific((json.dumps([first, second]),), READ, best),
        "one object where lines were asked": Specific((json.dumps({"sentences": [first, second]}),), READ, best),
        "lines with commas between them": Specific((f"{json.dumps(first)},\n{json.dumps(second)}",), READ, best),
        "empty lines between the lines": Specific((f"\n{json.dumps(first)}\n\n \n{json.dumps(second)}\n",), READ, best),
        "a line to repair": Specific((f"{json.dumps(first)[:-1]},}}\n{json.dumps(second)}",), READ, best),
        "a line that breaks off": Specific(
            (f"{json.dumps(first)[:-30]}\n{json.dumps(second)}", f"{json.dumps(first)}\n{json.dumps(second)[:-30]}"),
            ASKED,
            remark="the lost line may be the unsupported one",
        ),
        "a line without a label": Specific(
            tuple(written([first, {k: v for k, v in second.items() if k != key}]) for key in ("label", "sentence")),
            ASKED,
        ),
        "prose between the lines": Specific(
            tuple(f"{json.dumps(first)}\n{line}\n{json.dumps(second)}" for line in ("And then:", "7")), READ, best
        ),
        "a line between the lines that is no object": Specific(
            tuple(
                f"{json.dumps(first)}\n{line}\n{json.dumps(second)}"
                for line in ('["It is free.", "unsupported"]', "- It is free. (unsupported)", "label: no_rad")
            ),
            ASKED,
        ),
        "no lines at all": Specific(("[]", '{"sentences": []}', "{}"), ASKED),
        "a label in other letters": Specific((pair(label=" Supported. "), pair(label="**SUPPORTED**")), READ, best),
        "a label off the menu": Specific(
            (pair(label="partially supported"), pair(label="not_supported"), pair(label="yes")), OFF_ASKED
        ),
        "an empty label, or none": Specific((pair(label=""), pair(label=None), pair(label=["supported"])), ASKED),
        "an invented excerpt": Specific(
            excerpts("All devices come with a warranty of five years.", "See the manual.", "ten years"),
            READ,
            half,
            checked,
            remark="counts as unsupported",
        ),
        "no excerpt where one is due": Specific(
            (*excerpts(None, "", " "), written([{k: v for k, v in first.items() if k != "excerpt"}, second])),
            READ,
            half,
            {"grounded_as_labelled": True, "fabricated_evidence": 0, "missing_evidence": 1},
            remark="counts as unsupported",
        ),
        "an excerpt in other case, blanks and quotation marks": Specific(
            excerpts("ALL devices  come\nwith a warranty of two years", "\u201cAll devices come with a warranty\u201d"),
            READ,
            best,
        ),
        "an excerpt joined from several places": Specific(
            excerpts(
                "with a warranty of two years. ... Shops open at nine.",
                "It costs nothing at all. All devices come with a warranty",
                f"{document}\nShops open at nine.",
            ),
            READ,
            best,
        ),
        "an excerpt joined from two documents without a sign": Specific(
            excerpts(f"{document} Shops open at nine."), READ, half, checked
        ),
        "an excerpt joined from single words": Specific(
            excerpts("two years ... at all ... nine", "warranty All years Shops"), READ, half, checked
        ),
        "an excerpt that is no text": Specific(excerpts(7, ["All devices"], {"text": "All devices"}), ASKED),
        "an excerpt on a label that needs none": Specific(
            (pair(label="no_rad", excerpt="invented from beginning to end"),), READ, best, {"fabricated_evidence": 0}
        ),
        "labels that need no support only": Specific(
            (written([{**part, "label": "no_rad"} for part in (first, second)]),), READ, {"grounded": 1.0}
        ),
        "a contradiction without evidence": Specific(
            (pair(label="contradictory", excerpt="It costs a fortune at all."),),
            READ,
            half,
            {"fabricated_evidence": 1, "grounded_as_labelled": False},
        ),
        "a sentence of the answer left out": Specific((written([first]),), Outcome.INCOMPLETE),
        "lines about other sentences only": Specific(
            (written([{**first, "sentence": "Shops open at nine."}]),), Outcome.INCOMPLETE
        ),
        "a line about another sentence beside them": Specific(
            (written([first, {**first, "sentence": "It rains in the south.", "label": "unsupported"}, second]),),
            READ,
            best,
            {"invented_sentences": 1},
            remark="left out and counted",
        ),
        "a line twice": Specific(
            (written([first, first, second]),), READ, best, {"repeated_sentences": 1}, remark="counted"
        ),
        "a sentence with two labels": Specific((written([first, {**first, "label": "unsupported"}, second]),), ASKED),
        "nothing supported": Specific((written(FAMILIES["facts_grounding"].other),), READ, none),
        "a summary behind the lines": Specific(
            tuple(
                f"{written([first, second])}\n{summary}"
                for summary in (
                    *(
                        "**Summary:** all supported.",
                        "Summary: 2 supported, 0 unsupported",
                        "Overall verdict: supported",
                    ),
                    *('{"overall": {"label": "supported"}}', '{"summary": "all", "label": "supported"}'),
                )
            ),
            READ,
            best,
        ),
        "a summary with other labels": Specific(
            tuple(
                f"{written([first, second])}\n{summary}"
                for summary in (
                    "Overall verdict: unsupported",
                    '{"overall": {"label": "unsupported"}}',
                    "Total: 3 supported",
                )
            ),
            ASKED,
        ),
    }


def _declared_truths(family: str) -> Mapping[str, Specific]:
    good, other = FAMILIES[family].good_scores, FAMILIES[family].other_scores
    return {
        "a truth value as a word": Specific(_raw(family, "result", '"true"', '" TRUE. "', '"yes"', '"Y"'), READ, good),
        "its opposite": Specific(_raw(family, "result", "false", '"False"', '"no"', '"N \u274c"'), READ, other),
        "another word for a truth value": Specific(
            _raw(family, "result", "1", "0", '""', '"t"', "null", "[true]", '"true|false"', '"yes?"'), ASKED
        ),
    }


def _declared_numbers(family: str) -> Mapping[str, Specific]:
    good = FAMILIES[family].good_scores
    in_words, off = (
        ('"0.875"', " 8.75e-1", '" 0.875 "', '"0.875."', '"+00.875"', '".875"', ".875"),
        ('"1.5"', "-0.1", "1e999", "-1e999", "2"),
    )
    no_number = [number for number in _NO_NUMBER if number != "4/5"]
    return {
        "the same number in other signs": Specific(_raw(family, "result", *in_words), READ, good),
        "the ends of the scale": Specific(_raw(family, "result", "1", "1.0", '"1."'), READ, {"certainty": 1.0}),
        "off the scale, be it by little": Specific(_raw(family, "result", *off, "1.0000001", "-1e-9"), OFF),
        "no number": Specific(_raw(family, "result", *no_number, '"87%"', '"7/8"', "<number>", '"."', '".8.7"'), ASKED),
    }


def _declared_labels(family: str, good: str, other: str) -> Mapping[str, Specific]:
    menu = f"{good}|{other}"
    return {
        "the label in other letters": Specific(
            _with(family, "result", good.upper(), f" {good.title()}. ", f"{good} ."), READ, FAMILIES[family].good_scores
        ),
        "decoration around the label": Specific(
            _with(family, "result", f"{good}!", f"[[{good}]]", f"**{good}**"), READ, FAMILIES[family].good_scores
        ),
        "another label": Specific(
            _with(family, "result", "unknown", "yes", f"{good} or {other}", good[:-1]), OFF_ASKED
        ),
        "the menu itself": Specific(_with(family, "result", menu, f"{menu}|x"), ASKED),
        "an empty label": Specific(_with(family, "result", "", " ", "."), ASKED),
        "no label": Specific(_raw(family, "result", "true", "1", "null", f'["{good}"]'), ASKED),
        "the label broken off": Specific(
            tuple(f'{{"rationale": "It is so.", "result": "{begun}' for begun in ("", good[:3], good)), ASKED
        ),
    }


_GOALS = FAMILIES["task_completion"]


def _steps(family: str, key: str, label: str = "") -> Mapping[str, Specific]:
    """Change the entries of a judge of tools and trajectories, which name steps under a key and may have a label."""
    form = FAMILIES[family]
    good, good_scores = (
        (form.other, form.other_scores) if family == "tool_result_use" else (form.good, form.good_scores)
    )
    name, entries = next(iter(good[0].items()))
    assert isinstance(entries, list)

    def answer(*rows: Mapping[str, object]) -> str:
        return written([{**good[0], name: list(rows)}])

    def named(row: Mapping[str, object], text: str) -> dict[str, object]:
        return {**row, key: [text] if key == "evidence" else text}

    def text_of(row: Mapping[str, object]) -> str:
        value = row[key]
        return value[0] if isinstance(value, list) else str(value)

    first, *rest = entries
    spelled = (f"call {text_of(first)}.".lower(), f"`{text_of(first)}`", f"[{text_of(first)}] search_terms")
    strange = named(first, "C9")
    cases = {
        "a key with words or signs around it": Specific(
            tuple(answer(named(first, each), *rest) for each in spelled), READ, good_scores
        ),
        "keys of another trace, and none of this one": Specific(
            (answer(*(named(each, "S9") for each in entries)), answer(strange)), ASKED
        ),
        "an entry twice": Specific((answer(*entries, first),), READ, good_scores),
    }
    if key != "evidence":
        extra = Specific((answer(*entries, strange),), READ, good_scores, {"unknown_keys": 1})
        cases["a key of another trace beside"] = extra
    if label:
        off = tuple(answer({**first, label: word}, *rest) for word in ("perhaps", "good"))
        cases["a label off the menu"] = Specific(off, OFF_ASKED)
        menu = tuple(answer({**first, label: word}, *rest) for word in ("right|wrong", "done|partly|not_done"))
        cases["the menu itself"] = Specific(menu, ASKED)
    if label == "verdict":
        cases["two verdicts on one call"] = Specific((answer(*entries, {**first, label: "wrong"}),), ASKED)
        cases["a call without a verdict, or none with one"] = Specific((answer(*rest), answer()), Outcome.INCOMPLETE)
    return cases


SPECIFIC: Mapping[str, Mapping[str, Specific]] = {
    "tool_selection": _steps("tool_selection", "call", "verdict"),
    "tool_arguments": _steps("tool_arguments", "call", "verdict"),
    "tool_result_use": _steps("tool_result_use", "call", "problem"),
    "task_completion": {
        **_steps("task_completion", "evidence", "state"),
        "no goal, or more than ten": Specific(
            (_GOALS.text(goals=[]), _GOALS.text(goals=list(_GOALS.good[0]["goals"]) * 11)),  # type: ignore[call-overload]
            ASKED,
        ),
    },
    "plan_adherence": _steps("plan_adherence", "evidence", "state"),
    "step_efficiency": _steps("step_efficiency", "step"),
    "yes/no": _labels("yes/no"),
    "graded": _graded(),
    "three grades (long)": _long(),
    "three grades (short)": _grades("three grades (short)", "truth"),
    "ragbench": _ragbench(),
    "ragbench_sources": _sources(),
    "facts_grounding": _facts(),
    "instructions: yes/no": _labels("instructions: yes/no"),
    "instructions: boolean": _declared_truths("instructions: boolean"),
    "instructions: whole number": _grades("instructions: whole number", "result"),
    "instructions: number": _declared_numbers("instructions: number"),
    "instructions: labels with numbers": _declared_labels("instructions: labels with numbers", "good", "poor"),
    "instructions: labels": {
        **_declared_labels("instructions: labels", "question", "bug report"),
        "`_` or `-` for a blank": Specific(
            _with("instructions: labels", "result", "bug_report", "Bug-Report"),
            READ,
            FAMILIES["instructions: labels"].other_scores,
        ),
    },
    "custom_prompt": _declared_labels("custom_prompt", "formal", "casual"),
    "instructions: trace and inputs": _labels("instructions: trace and inputs"),
}
