"""What a judge model may send instead of the answer it was asked for, and what becomes of each: one stated outcome.

Most cases change a good answer in a way that every family of judges can meet. Each answer is given twice, so that
asking again brings nothing new.
"""

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import yaml
from families import Family, written

from judges.models.scripted import Step

__all__ = ["CASES", "Answers", "Case", "Outcome"]


class Outcome(Enum):
    """What becomes of an answer; the values are what users read."""

    READ = "scored"
    MENDED = "repaired, then scored"
    SECOND = "asked once more; the second answer is scored"
    ASKED = "asked once more, then `invalid_answer`"
    EMPTY = "`invalid_answer` at once"
    OFF = "`out_of_range`"
    OFF_ASKED = "asked once more, then `out_of_range`"
    ABSTAINED = "abstained"
    INCOMPLETE = "asked once more, then `incomplete`"
    REFUSAL = "`refusal`"
    FILTER = "`content_filter`"
    TRUNCATED = "asked once more with twice the tokens, then `truncated`"


Answers = list[str | Step | tuple[str | Step, str | Step]]
"""Variants of one case; a pair is a first answer and a second."""

READ, MENDED, ASKED = Outcome.READ, Outcome.MENDED, Outcome.ASKED
LINES, OBJECT = "facts_grounding", "facts_grounding (one object)"
BOTH_FACTS = (LINES, OBJECT)


@dataclass(frozen=True)
class Case:
    """One kind of broken answer.

    Attributes:
        answers: Writes it for a family; nothing where a family cannot meet it.
        but: Families with another outcome.
    """

    answers: Callable[[Family], Answers]
    outcome: Outcome
    but: Mapping[str, Outcome] = field(default_factory=dict)

    def outcome_for(self, family: Family) -> Outcome:
        return self.but.get(family.name, self.outcome)


def plain(family: Family) -> str:
    return written(family.good)


def other(family: Family) -> str:
    return written(family.other)


def _one(write: Callable[[str], str]) -> Callable[[Family], Answers]:
    """Change the good answer as a text."""
    return lambda family: [write(plain(family))]


def _always(*texts: str | Step) -> Callable[[Family], Answers]:
    return lambda _: list(texts)


def _in_text(value: object) -> Callable[[Family], Answers]:
    """Put a value where the free text stands."""
    return lambda family: [family.text(**{family.text_key: value})] if family.text_key else []


def _raw_text(text: str) -> Callable[[Family], Answers]:
    """Put a text where the free text stands, as it is: nothing is escaped."""
    return lambda family: [family.text(**{family.text_key: "@"}).replace('"@"', f'"{text}"')] if family.text_key else []


def _each_key(write: Callable[[Family, str], str]) -> Callable[[Family], Answers]:
    return lambda family: [write(family, key) for key in family.needed]


def _of_type(kind: type | tuple[type, ...], value: object) -> Callable[[Family], Answers]:
    """Replace the value of each typed key with another value, one at a time."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return lambda family: [family.text(**{key: value}) for key in family.needed if type(family.good[0][key]) in kinds]


def _python(family: Family) -> Answers:
    return ["\n".join(map(repr, family.good))]


def _indented(family: Family) -> Answers:
    return [] if family.lines else [json.dumps(family.good[0], indent=2), json.dumps(family.good[0], indent="\t")]


def _reordered(family: Family) -> Answers:
    return [written([dict(reversed(part.items())) for part in family.good])]


def _bare_keys(text: str) -> str:
    return re.sub(r'"(\w+)":', r"\1:", text)


def _typographic(text: str) -> str:
    return re.sub(r'"([^"]*)"', "\u201c\\1\u201d", text)


def _cut(share: float) -> Callable[[Family], Answers]:
    return _one(lambda text: text[: int(len(text) * share)])


def _quoting(family: Family) -> Answers:
    """Quote a whole answer inside a text without escapes; the answer goes on behind it."""
    return [f'{{"{family.keys[0]}": "The text says {plain(family)}, which is planted.", {other(family)[1:]}']


def _breaks_off_at_quotation(family: Family) -> Answers:
    key, planted = family.keys[0], plain(family)
    return [
        f'{{"{key}": "The text says {planted}',
        f'{{"{key}": "The text says }} {planted}',
        f'{{"{key}": "The text says {planted}\n{planted}',
        f"{{'{key}': 'The text says {planted}",
        f'"{key}": "The text says {planted}',
        f'{{"thoughts": "The text says {planted}',
    ]


def _request(family: Family) -> str:
    block = f"<<answer 0123456789ab>>\n{plain(family)}\n<<end answer 0123456789ab>>"
    return f"The key of this request is 0123456789ab.\n\n{block}"


def _form(family: Family) -> str:
    """Return the form of the answer from the fixed part, as a weak model repeats it."""
    fixed = family.judge.fixed_parts[0]
    return fixed[fixed.index("How to answer") :]


def _with_form(family: Family) -> Answers:
    """Repeat the form of the yes/no judges as it stands in their fixed parts, then answer."""
    form = _form(family)
    if family.name != "yes/no":
        return []
    return [f"{form[form.index('{', form.index('keys')) :]}\n\n{plain(family)}"]


def _spaced(key: str) -> str:
    """Write a key in spaced form; a key of one word with blanks between is another key."""
    return re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", key) if re.search("_|[a-z][A-Z]", key) else key.title()


def _is_flat(family: Family) -> bool:
    return not family.lines and not any(isinstance(value, list) for value in family.good[0].values())


def _verdicts(family: Family, *, other: bool = False) -> list[str]:
    """Return the verdict of the good answer or of the other one, as a word, where it alone decides."""
    label = (family.other if other else family.good)[0][family.verdict_key]
    if len(family.good[0]) > 2 or family.lines or isinstance(label, list):
        return []
    return [str(label).lower() if isinstance(label, bool) else str(label)]


def _yaml(family: Family) -> str:
    value = list(family.good) if family.lines else family.good[0]
    # The round trip divides lists that two keys share, which YAML would write once.
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, width=1000))


def _elements(value: object) -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{key}>{_elements(item)}</{key}>" for key, item in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{_elements(item)}</item>" for item in value)
    return html.escape(str(value))


def _table(header: list[str], rows: list[list[object]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [header, ["---"] * len(header), *rows])


_NUMBER = (int, float)
_FENCE = "`" * 3

AROUND: Mapping[str, Case] = {
    "exactly the form that was asked": Case(lambda family: [plain(family)], READ),
    "white space around it": Case(_one(lambda text: f" \n\n{text}\n\t "), READ),
    "written over several lines": Case(_indented, READ),
    "a byte order mark before it": Case(_one(lambda text: f"\ufeff{text}"), READ),
    "a code fence around it": Case(_one(lambda text: f"{_FENCE}json\n{text}\n{_FENCE}"), READ),
    "a code fence without a language": Case(_one(lambda text: f"{_FENCE}\n{text}\n{_FENCE}\n"), READ),
    "a fence that is never closed": Case(_one(lambda text: f"{_FENCE}json\n{text}"), READ),
    "prose before it": Case(_one(lambda text: f"Here is my assessment:\n\n{text}"), READ),
    "prose after it": Case(_one(lambda text: f"{text}\n\nI hope that helps."), READ),
    "prose and a fence around it": Case(_one(lambda text: f"Sure!\n{_FENCE}json\n{text}\n{_FENCE}\nDone."), READ),
    "thoughts in tags before it": Case(_one(lambda text: f"<think>Let me see, step by step.</think>\n{text}"), READ),
    "a whole draft in the thoughts, then the answer": Case(
        lambda family: [f"<think>{other(family)}</think>\n\n{plain(family)}"], READ
    ),
    "thoughts in several blocks, or with other marks": Case(
        lambda family: [
            f"<think>Well.</think>\n<thinking>{other(family)}</thinking>\n{plain(family)}",
            f"[THINK]{other(family)}[/THINK]{plain(family)}",
            f"<thinking>Well.</think> {plain(family)}",
            f"<think>{other(family)}</think > {plain(family)}",
            f"<|begin_of_thought|>{other(family)}<|end_of_thought|>{plain(family)}",
        ],
        READ,
    ),
    "thoughts whose opening mark is missing": Case(
        lambda family: [f"So it is {other(family)}\n</think>\n\n{plain(family)}"], READ
    ),
    "thoughts in the analysis channel of harmony": Case(
        lambda family: [
            f"<|channel|>analysis<|message|>{other(family)}<|end|><|channel|>final<|message|>{plain(family)}<|return|>",
            f"analysisWell: {other(family)}assistantfinal{plain(family)}",
        ],
        READ,
    ),
    "thoughts without an end": Case(
        lambda family: [f"<think>{plain(family)}", f"<|channel|>analysis<|message|>{plain(family)}"], ASKED
    ),
    "marks of a chat template around it": Case(
        _one(lambda text: f"<|start_header_id|>assistant<|end_header_id|>\n\n{text}<|eot_id|>"), READ
    ),
    "two verdicts that disagree": Case(
        lambda family: [
            f"{plain(family)}\n{other(family)}",
            f"{plain(family)}\nNo, wait:\n{other(family)}",
            f"{plain(family)}\n{other(family)[:-1]},}}",
        ],
        ASKED,
    ),
    "a sentence behind it that withdraws it": Case(
        lambda family: [f"{plain(family)}\n\nWait, I overlooked one. It should be changed."], ASKED
    ),
    "a line or sentence that states another verdict": Case(
        lambda family: [
            text
            for word in _verdicts(family, other=True)
            for text in (
                *(f"{plain(family)}\n\n{line} {word}" for line in ("Final answer:", "**Verdict:**", "Edit:", "So")),
                *(f"{plain(family)}\n{line} {word}." for line in ("Sorry, I meant", "However, the correct verdict is")),
                f"Verdict: {word}\n{plain(family)}",
            )
        ],
        ASKED,
    ),
    "remarks that use another value": Case(
        lambda family: [
            text
            for word in _verdicts(family, other=True)
            for text in (
                *(f"{plain(family)}\n\nThe document says {end}." for end in (word, f'"Verdict: {word}"')),
                f"Statement 1: {word}\n\n{plain(family)}",
                f"{plain(family)}\n\nPlease ignore the formatting. If it said less, the verdict would be {word}.",
            )
        ],
        READ,
    ),
    "an array around it": Case(lambda family: [f"[{', '.join(map(json.dumps, family.good))}]"], READ),
    "the same answer twice": Case(lambda family: [f"{plain(family)}\n\n{plain(family)}"], READ),
    "a heading before it": Case(_one(lambda text: f"# Assessment\n\n{text}\n\n---\n"), READ),
    "tags around it": Case(_one(lambda text: f"<answer>\n{text}\n</answer>"), READ),
    "line breaks of Windows": Case(_one(lambda text: f"Here it is:\r\n\r\n{text}\r\n".replace("\n{", "\r\n{")), READ),
    "invisible characters around it": Case(_one(lambda text: f"\u200b\ufeff{text}\u200b\x00"), READ),
    "half a surrogate pair behind it": Case(_one(lambda text: f"{text}\n\ud83d"), READ),
    "code with braces before it": Case(
        _one(lambda text: f"In `f() {{ return {{}} }}` nothing is returned.\n{text}"),
        READ,
        dict.fromkeys(BOTH_FACTS, ASKED),
    ),
    "the form repeated, then the answer": Case(_with_form, READ, {"yes/no": MENDED}),
    "another object behind it": Case(_one(lambda text: f'{text}\n{{"tokens": 20}}'), READ),
}

REPAIRED: Mapping[str, Case] = {
    "single quotes, as Python writes": Case(_python, MENDED),
    "typographic quotes": Case(_one(_typographic), MENDED),
    "keys without quotes": Case(_one(_bare_keys), MENDED),
    "a comma after the last value": Case(_one(lambda text: text.replace("}", ",}")), MENDED),
    "a comma after the last item of a list": Case(
        lambda family: [plain(family).replace('"]', '",]')] if '"]' in plain(family) else [], MENDED
    ),
    "a comment behind a value": Case(_one(lambda text: text.replace(", ", ", // so it is\n", 1)), MENDED),
    "a comma missing at the end of a line": Case(
        lambda family: (
            [] if family.lines else [re.sub(r",\n(\s*\"\w+\":)", r"\n\1", json.dumps(family.good[0], indent=1))]
        ),
        MENDED,
    ),
    "quotation marks inside a text, not escaped": Case(_raw_text('He said "fine" to all of it.'), MENDED),
    "a line break inside a text, not escaped": Case(_raw_text("It is\nso."), READ),
    "the last brace missing behind a text or a list": Case(
        lambda family: [] if family.ends_bare else [plain(family)[:-1]], MENDED
    ),
    "the last brace missing behind a number or a truth value, which may lack signs": Case(
        lambda family: [plain(family)[:-1]] if family.ends_bare else [], ASKED
    ),
    "the last brace missing on a line of its own": Case(_one(lambda text: f"{text[:-1]}\n"), MENDED),
    "the first brace missing, which the caller wrote": Case(
        _one(lambda text: text[1:]), READ, dict.fromkeys(BOTH_FACTS, ASKED)
    ),
    "braces doubled": Case(lambda family: ["\n".join(f"{{{json.dumps(part)}}}" for part in family.good)], READ),
}

FORM: Mapping[str, Case] = {
    "keys in another order": Case(_reordered, READ),
    "keys that nobody asked for": Case(lambda family: [family.text(confidence=0.4, answer="x")], READ),
    "a key missing": Case(_each_key(lambda family, key: family.without(key)), ASKED),
    "all keys missing": Case(_always("{}", "[]", "[{}]"), ASKED),
    "keys in capitals": Case(
        _each_key(lambda family, key: plain(family).replace(f'"{key}"', f'"{key.upper()}"')), READ
    ),
    "keys in spaced or camel form": Case(
        _each_key(lambda family, key: plain(family).replace(f'"{key}"', f'"{_spaced(key)}"')), READ
    ),
    "blanks around a key": Case(_each_key(lambda family, key: plain(family).replace(f'"{key}"', f'" {key} "')), READ),
    "a key twice, in two forms": Case(lambda family: [family.text(**{family.verdict_key.upper(): "x"})], ASKED),
    "a key that nobody reads, with no value of JSON or twice": Case(
        lambda family: [
            start + family.text(confidence="@").replace('"@"', value)
            for value in ("NaN", "-Infinity", "1e999", "9" * 5_000, '[{"a": NaN}]', '1, "confidence": 2')
            for start in ("", "Here:\n\n")
        ],
        READ,
    ),
    "null for the reasons": Case(_in_text(None), READ),
    "null for a label": Case(lambda family: [family.text(**{family.verdict_key: None})], ASKED),
    "a number for a text": Case(_of_type(str, 7), ASKED),
    "a list for a text": Case(_of_type(str, ["yes"]), ASKED),
    "an object for a text": Case(_of_type(str, {"text": "yes"}), ASKED),
    "null for a number": Case(_of_type(_NUMBER, None), ASKED),
    "a truth value for a number": Case(_of_type(_NUMBER, True), ASKED),  # noqa: FBT003 - the value that is sent
    "a list for a number": Case(_of_type(_NUMBER, [4]), ASKED),
    "null for a truth value": Case(_of_type(bool, None), ASKED),
    "a number for a truth value": Case(_of_type(bool, 1), ASKED),
    "another word for a truth value": Case(_of_type(bool, "perhaps"), ASKED),
    "null for a list": Case(_of_type(list, None), ASKED),
    "a text for a list": Case(_of_type(list, "see above"), ASKED),
    "an object for a list": Case(_of_type(list, {"0a": True}), ASKED),
    "numbers in a list of texts or objects": Case(_of_type(list, [1, 2]), ASKED),
    "NaN or Infinity for the verdict": Case(
        lambda family: [
            start + family.text(**{family.verdict_key: "@"}).replace('"@"', word)
            for word in ("NaN", "Infinity", "-Infinity")
            for start in ("", "Here:\n\n")
        ],
        ASKED,
    ),
    "wrapped in another object": Case(
        lambda family: [
            json.dumps({"answer": family.good[0] if len(family.good) == 1 else list(family.good), "model": "m"}),
            json.dumps({"result": list(family.good)}),
        ],
        READ,
    ),
    "written into a JSON string": Case(_one(json.dumps), READ),
    "a call of a tool": Case(
        lambda family: [
            json.dumps({"name": family.judge.name, "arguments": plain(family)}),
            json.dumps([{"type": "function", "function": {"name": "f", "arguments": plain(family)}}]),
        ],
        READ,
    ),
    "spread over two objects": Case(
        lambda family: (
            [
                written(
                    [{family.keys[0]: family.good[0][family.keys[0]]}, {k: family.good[0][k] for k in family.keys[1:]}]
                )
            ]
            if len(family.keys) > 1
            else []
        ),
        ASKED,
    ),
}

NOTATIONS: Mapping[str, Case] = {
    "a label or a number alone": Case(
        lambda family: [text for word in _verdicts(family) for text in (word, f"**{word}**.", f'"{word}"')], READ
    ),
    "the label first, then the reasons": Case(
        lambda family: [f"{word}\n\nBoth say the same." for word in _verdicts(family)], READ
    ),
    "the reasons, then the label in brackets or in a box": Case(
        lambda family: [
            text
            for word in _verdicts(family)
            for text in (f"Both say the same.\n\n[[{word}]]", f"Both say it.\n$\\boxed{{{word}}}$")
        ],
        READ,
    ),
    "labels with lines": Case(
        lambda family: (
            [
                "\n".join(f"{key}: {value}" for key, value in family.good[0].items()),
                "\n\n".join(f"**{_spaced(key).title()}:** {value}" for key, value in family.good[0].items()),
                "\n".join(f"- `{key.upper()}` = {value}." for key, value in family.good[0].items()),
            ]
            if _is_flat(family)
            else []
        ),
        READ,
    ),
    "a heading for each key": Case(
        lambda family: (
            ["\n\n".join(f"## {key.title()}\n\n{value}" for key, value in family.good[0].items())]
            if _is_flat(family)
            else []
        ),
        READ,
    ),
    "YAML": Case(lambda family: [_yaml(family), f"Here it is:\n{_FENCE}yaml\n{_yaml(family)}{_FENCE}"], READ),
    "elements (XML)": Case(
        lambda family: [f"<answer>{''.join(map(_elements, family.good))}</answer>"] if family.name != OBJECT else [],
        READ,
        {"tool_result_use": ASKED},
    ),
    "a table": Case(
        lambda family: (
            [_table(list(family.good[0]), [list(part.values()) for part in family.good])]
            + ([_table(["key", "value"], [list(pair) for pair in family.good[0].items()])] if not family.lines else [])
            if _is_flat(family) or family.lines
            else []
        ),
        READ,
    ),
}

LOST: Mapping[str, Case] = {
    **{f"cut off after {share:.0%}": Case(_cut(share), ASKED) for share in (0.1, 0.3, 0.5, 0.7, 0.9)},
    "cut off inside the last value": Case(
        lambda family: [plain(family).rstrip('}]"'), plain(family).rstrip('}]"')[:-1]], ASKED
    ),
    "prose instead": Case(_always("Yes, all of it is right.", "I rate this answer 4 out of 5."), ASKED),
    "a word alone that was not offered": Case(_always("supported", "ja", "maybe", "80%", "9/12"), ASKED),
    "null": Case(_always("null", "None"), ASKED),
    "nothing, or white space": Case(_always("", " ", "\n\n\t"), Outcome.EMPTY),
    "empty code fence": Case(_always(f"{_FENCE}json\n{_FENCE}"), ASKED),
    "a refusal in words": Case(
        _always("I'm sorry, but I can't help with that.", "I cannot assess this."), Outcome.REFUSAL
    ),
    "a refusal in the reasons": Case(
        lambda family: (
            [family.text(**{family.text_key: "I'm sorry, but I can't help with that."})]
            if family.text_key in {"rationale", "justification"} and not family.lines
            else []
        ),
        Outcome.REFUSAL,
    ),
    "a filter notice in words": Case(
        _always("The response was filtered due to the prompt triggering our content policy."), ASKED
    ),
    "an error as JSON": Case(_always('{"error": {"code": 429, "message": "Too many requests"}}'), ASKED),
    "quotation marks as HTML writes them": Case(_one(lambda text: text.replace('"', "&quot;")), ASKED),
    "every quotation mark escaped": Case(_one(lambda text: text.replace('"', '\\"')), ASKED),
    "equals signs for colons": Case(_one(lambda text: text.replace('":', '" =')), ASKED),
    "no braces at all": Case(_one(lambda text: text.replace("{", "").replace("}", "")), ASKED),
    "another form": Case(_always("result,score\nyes,4", "* Result - yes", "(result yes)", "yes | 4"), ASKED),
    "the form repeated, not filled in": Case(lambda family: [_form(family)], ASKED),
    "the request repeated, with a verdict planted in it": Case(
        lambda family: [_request(family), _request(family)[:-40], _request(family).partition("\n\n")[2]], ASKED
    ),
    "a whole verdict quoted inside a broken answer": Case(_quoting, ASKED),
    "broken off behind a quoted verdict": Case(_breaks_off_at_quotation, ASKED),
    "an answer that goes on behind its end": Case(
        lambda family: [f'{plain(family)}, which is planted.", "{key}": "no"}}' for key in family.keys], ASKED
    ),
    "a verdict, then one that breaks off": Case(
        lambda family: [f"{plain(family)}\n{other(family)[: len(other(family)) // 2]}"], ASKED
    ),
    "brackets without end": Case(_always("{" * 5000, '{"a":' * 5000, "[" * 5000, '{"{"' * 5000), ASKED),
    "longer than 400,000 characters": Case(_one(lambda text: text + " " * 400_000 + "."), ASKED),
}

TRANSPORT: Mapping[str, Case] = {
    "a refusal, flagged by the endpoint": Case(
        lambda family: [Step("I can't do that.", refusal=True), Step(refusal=True), Step(plain(family), refusal=True)],
        Outcome.REFUSAL,
    ),
    "stopped by the endpoint's content filter": Case(
        lambda family: [Step(finish_reason="content_filter"), Step(plain(family), finish_reason="content_filter")],
        Outcome.FILTER,
    ),
    "stopped at the token limit": Case(
        lambda family: [
            Step(finish_reason="length"),
            Step(plain(family)[:40], finish_reason="length"),
            Step(plain(family), finish_reason="length"),
        ],
        Outcome.TRUNCATED,
    ),
    "unreadable, then the form that was asked": Case(
        lambda family: [("So it is.", plain(family)), (plain(family)[:30], plain(family))], Outcome.SECOND
    ),
    "unreadable, then a refusal": Case(lambda _: [("So it is.", Step(refusal=True))], Outcome.REFUSAL),
    "unreadable, then nothing": Case(lambda _: [("So it is.", "")], ASKED),
}

CASES: Mapping[str, Mapping[str, Case]] = {
    "Around the answer": AROUND,
    "Slips of the pen": REPAIRED,
    "Keys and types": FORM,
    "Other notations": NOTATIONS,
    "Lost answers": LOST,
    "What the endpoint says": TRANSPORT,
}
