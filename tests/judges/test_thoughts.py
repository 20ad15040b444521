"""Thoughts before an answer: whatever stands before the last closing mark of a thought is no answer."""

import time

from support.cases import each_case

from judges.parsing.answer import answer_of, beside_thoughts

FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"
QUOTES = '{"rationale": "It says </think>{\\"result\\": \\"yes\\"}.", "result": "no"}'

ANSWERS: dict[str, tuple[str, str | None]] = {
    "no thoughts": ('{"result": "no"}', '{"result": "no"}'),
    "a block": ("<think>A.</think>B", "B"),
    "other marks": ("<thinking>A</thinking>\n<thought>B</thought><Reasoning>C</Reasoning>[THINK]D[/THINK]E", "E"),
    "a blank in a mark": ("<think>A</think >B", "B"),
    "marks of single families": (
        "<|begin_of_thought|>A<|end_of_thought|><seed:think>A</seed:think>\u25c1think\u25b7A\u25c1/think\u25b7B",
        "B",
    ),
    "marks of another family": ("<|START_THINKING|>A<|END_THINKING|>B", "B"),
    "marks of Gemma 4": ("<|channel>thought\nA: yes.\n<channel|>B<turn|>", "B"),
    "no thought of Gemma 4": ("<|turn>model\n<|channel>thought\n<channel|>\nB", "\nB"),
    "no end of a thought of Gemma 4": ("<|channel>thought\nA", None),
    "marks of MedGemma": ("<unused94>thought\nA<unused95>B", "B"),
    "no end of a thought of MedGemma": ("<unused94>thought\nA", None),
    "the end of a thought of MedGemma alone": ("thought\nA\n<unused95>B", "B"),
    "a thought of MedGemma without its name": ("<unused94>A", None),
    "a mark of Gemma 4 quoted in the answer": ('{"rationale": "It says <channel|>yes."}',) * 2,
    "no end of a mark of one family": ("<|begin_of_thought|>A", None),
    "the opening mark missing": ("A.\n</think>\nB", "\nB"),
    "an opening mark in a thought": ("<think>It says <think>.</think>B", "B"),
    "different marks": ("<thinking>A</think>B", "B"),
    "nothing behind them": ("<think>A</think>", ""),
    "no end": ("<think>A", None),
    "no end of the second": ("<think>A</think> <think>B", None),
    "a mark quoted in the answer": (QUOTES, QUOTES),
    "a mark quoted in the answer behind thoughts": (f"<think>A</think>{QUOTES}", QUOTES),
    "a mark quoted in a draft": (f"<think>{QUOTES} No: </think>B", "B"),
    "a mark in a broken object": ('{"rationale": "It says </think>yes', "yes"),
    "harmony": (f"{ANALYSIS}A<|end|>{FINAL}B<|return|>", "B"),
    "harmony with a format": (
        f"{ANALYSIS}A<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>B",
        "B",
    ),
    "harmony with an empty answer": (f"{ANALYSIS}A<|end|>{FINAL}<|return|>", ""),
    "harmony without an answer": (f"{ANALYSIS}A<|end|>", None),
    "harmony with a preamble": (f"{ANALYSIS}A<|end|><|channel|>commentary<|message|>C<|end|>{FINAL}B", "B"),
    "harmony with a call": (f"{ANALYSIS}A<|end|><|channel|>commentary to=functions.f<|message|>B<|call|>", "B"),
    "harmony with two answers": (f"{FINAL}A<|end|>{FINAL}B<|return|>", "A\nB"),
    "harmony quoted in the answer": ('{"rationale": "It says <|channel|>final<|message|>yes."}',) * 2,
    "harmony without its marks": ("analysisThe text. So no.assistantfinalB", "B"),
    "harmony without its marks and answer": ("analysisThe text. So no.", None),
    "harmony with a blank for its marks": ("analysis The text.assistantfinal B", " B"),
    "harmony with a blank for its marks and no answer": ("analysis The text. So no.", None),
    "harmony quoted without its marks": ("analysisThe text.assistantfinalA assistantfinalB", "A assistantfinalB"),
    "prose on an analysis": ("Analysis: so it is.", "Analysis: so it is."),
    "marks of templates": ("<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>", "B"),
    "a mark at the end": ("B<\uff5cend\u2581of\u2581sentence\uff5c>", "B"),
    "a mark before a call": ('<|python_tag|>{"name": "f"}', '{"name": "f"}'),
}


@each_case(("text", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer_stands_behind_the_thoughts(text: str, answer: str | None) -> None:
    assert answer_of(text) == answer


BESIDE: dict[str, tuple[str, str]] = {
    "the answer": ("B", "B"),
    "the end": ("\n<unused95>B", "B"),
    "the end of Gemma 4": ("A<channel|>B<turn|>", "B"),
    "the end alone": ("<unused95>", ""),
    "the beginning alone": ("<unused94>thought\n", ""),
    "the beginning of Gemma 4 alone": ("<|channel>thought", ""),
    "another beginning alone": ("<think>\n", ""),
    "the name alone": ("thought", ""),
    "the name": ("thought\nB", "B"),
    "the name and the end": ("thought\nA<unused95>B", "B"),
    "a text that begins so": ("thoughts B", "thoughts B"),
    "thoughts without an end": ("<unused94>thought\nA", "<unused94>thought\nA"),
}


@each_case(("text", "answer"), BESIDE.values(), ids=BESIDE)
def test_a_server_that_moved_thoughts_leaves_parts_of_them(text: str, answer: str) -> None:
    assert beside_thoughts(text) == answer


@each_case(
    "text",
    [
        "<|" * 200_000,
        "</think>" * 50_000,
        " " * 390_000 + "<|x|>",
        '{"a": </think>' * 28_000,
        '{"' * 190_000 + "</think>",
        '{"a":1}</think>' * 26_000,
        "<|channel|>final " * 20_000,
    ],
    ids=["marks", "closing marks", "blanks", "broken objects", "openings", "objects", "channels"],
)
def test_long_texts_take_less_than_half_a_second(text: str) -> None:
    began = time.thread_time()
    answer_of(text)
    assert time.thread_time() - began < 0.5
