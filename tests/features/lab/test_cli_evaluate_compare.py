"""`tracejudge evaluate --compare`: two files of answers, joined and compared by a model behind a real endpoint."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli_parts import Run, labelled, words, write_lines
from support.endpoint import ChatEndpoint
from support.replies import Answer, Usage, answers, failing, sequence, yes_no

from judges.core.verdict import Verdict

OUTPUT = ("--output", "out.jsonl")
LONG, SHORT = "It is open from nine to six, except on Sundays.", "It is open."
_ANSWER = re.compile(r"<<(first|second) answer \w+>>\n(.*?)\n<<end", re.DOTALL)


def shown(body: dict[str, Any]) -> dict[str, str]:
    return dict(_ANSWER.findall(body["messages"][1]["content"]))


def prefers(choose: Callable[[dict[str, str]], str]) -> Answer:
    """Answer each request by a function of the two answers shown."""
    return lambda body: json.dumps({"rationale": "Because.", "result": choose(shown(body))})


def longer(fields: dict[str, str]) -> str:
    first, second = len(fields["first"]), len(fields["second"])
    return "tie" if first == second else ("first" if first > second else "second")


def rows(*outputs: str, prefix: str = "", **fields: Any) -> list[dict[str, Any]]:
    return [
        labelled(None, trace_id=f"{prefix}{number}", input=f"Question {number}?", output=text, **fields)
        for number, text in enumerate(outputs)
    ]


def files(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> tuple[str, str]:
    return write_lines("a.jsonl", a), write_lines("b.jsonl", b)


def verdicts() -> list[Verdict]:
    return [msgspec.json.decode(line, type=Verdict) for line in Path("out.jsonl").read_bytes().splitlines()]


@pytest.fixture(autouse=True)
def _model(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    model = {"base_url": endpoint.base_url, "model": "m", "price": {"input": 1000.0, "output": 3000.0}}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))


def test_a_judge_that_prefers_the_longer_answer_finds_the_file_with_the_longer_ones(
    run: Run, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = answers(prefers(longer))
    # B is longer nine times, shorter once, as long once, and the same twice.
    a = rows(*[SHORT] * 9, LONG, "It is shut.", "Same.", "Same.")
    b = rows(*[LONG] * 9, SHORT, "It is open.", "Same.", " Same. \n")
    ended = run("evaluate", "--compare", *files(a, b), *OUTPUT, "--json")
    assert ended.code == 0, ended.err
    judged = verdicts()
    labels = [verdict.scores[0].label for verdict in judged]
    assert labels == ["win"] * 9 + ["loss", "tie", "tie", "tie"]
    assert [verdict.scores[0].value for verdict in judged] == [1.0] * 9 + [0.0, 0.5, 0.5, 0.5]
    assert judged[0].rationale == "A first: Because.\nB first: Because."
    assert judged[0].details == {"compared_with": "0", "preferred": ["B", "B"]}
    assert [verdict.attempts for verdict in judged] == [2] * 11 + [0, 0]
    assert len(endpoint.calls) == 22, "equal answers are not asked about"
    document = ended.document
    (row,) = document["judges"]
    assert {name: each["pairs"] for name, each in row["outcomes"].items()} == {"win": 9, "tie": 3, "loss": 1}
    assert row["points"]["share"] == pytest.approx(10.5 / 13)
    assert 0.5 < row["points"]["low"] < row["points"]["share"] < row["points"]["high"]
    assert (row["equal"], row["position_bias"]["pairs"]) == (2, {"first": 0, "second": 0})
    assert (document["pairs"], document["without_partner"]) == (13, {"a": 0, "b": 0})
    assert (row["input_tokens"], row["output_tokens"]) == (2200, 440)
    assert document["cost_usd"] == pytest.approx((2200 * 1000 + 440 * 3000) / 1e6)
    told = words(run("evaluate", "--compare", "a.jsonl", "b.jsonl").out)
    assert "13 pairs by m in" in told
    assert "A = a.jsonl, B = b.jsonl" in told
    assert "pairwise: B is better; wins of B and half of the ties: 80.8%" in told
    assert "pairwise: 2 pairs of equal answers, ties without a request" in told
    swapped = words(run("evaluate", "--compare", "b.jsonl", "a.jsonl").out)
    assert "pairwise: A is better; wins of B and half of the ties: 19.2%" in swapped


def test_a_judge_that_always_picks_the_first_position_finds_ties_and_its_bias_is_reported(
    run: Run, endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = answers(prefers(lambda _: "first"))
    ended = run("evaluate", "--compare", *files(rows(*[SHORT] * 20), rows(*[LONG] * 20)), *OUTPUT, "--json")
    assert ended.code == 0
    (row,) = ended.document["judges"]
    assert {name: each["pairs"] for name, each in row["outcomes"].items()} == {"win": 0, "tie": 20, "loss": 0}
    assert row["position_bias"]["pairs"] == {"first": 20, "second": 0}
    assert row["position_bias"]["share"] == 1.0
    assert {verdict.details["position_bias"] for verdict in verdicts()} == {"first"}
    told = words(run("evaluate", "--compare", "a.jsonl", "b.jsonl").out)
    assert "no difference is shown; wins of B and half of the ties: 50.0%" in told
    assert "preference follows the position in 100.0% (83.9% to 100.0%) of compared pairs: 20 to the first" in told


def test_a_preference_in_one_position_only_is_a_tie_without_bias(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers(prefers(lambda value: "second" if value["second"] == LONG else "tie"))
    assert run("evaluate", "--compare", *files(rows(SHORT), rows(LONG)), *OUTPUT).code == 0
    (verdict,) = verdicts()
    assert verdict.scores[0].label == "tie"
    assert verdict.details == {"compared_with": "0", "preferred": ["B", "tie"]}


def test_unreadable_answers_are_asked_for_again_and_then_counted(run: Run, endpoint: ChatEndpoint) -> None:
    readable = answers(prefers(longer))
    # The third pair has no readable answer, the second one after a repair request.
    fields = {"Question 1?": sequence(answers("Hm, hard to say."), readable), "Question 2?": answers("Both are fine.")}
    endpoint.behaviour = lambda call: next((then for asked, then in fields.items() if asked in call.text()), readable)
    ended = run("evaluate", "--compare", *files(rows(*[SHORT] * 3), rows(*[LONG] * 3)), *OUTPUT, "--json")
    assert ended.code == 0, ended.err
    assert [(verdict.outcome, verdict.reason) for verdict in verdicts()] == [
        ("scored", None),
        ("scored", None),
        ("unscored", "invalid_answer"),
    ]
    (row,) = ended.document["judges"]
    assert (row["unscored"], row["outcomes"]["win"]["pairs"]) == ({"invalid_answer": 1}, 2)
    endpoint.behaviour = answers("Both are fine.")
    ended = run("evaluate", "--compare", "a.jsonl", "b.jsonl")
    assert ended.code == 1
    assert "nothing was scored" in ended.err


def test_a_busy_endpoint_is_asked_again(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = sequence(failing(429, retry_after=0), answers(prefers(longer)))
    assert run("evaluate", "--compare", *files(rows(SHORT), rows(LONG)), *OUTPUT).code == 0
    (verdict,) = verdicts()
    assert (verdict.scores[0].label, verdict.attempts, verdict.input_tokens) == ("win", 3, 2 * Usage().prompt_tokens)


def test_rows_are_joined_by_id_or_else_by_request(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers(prefers(longer))
    hello, shop = ([{"role": "user", "content": text}] for text in ("Hello.", "Which shop?"))
    a = [
        *rows(SHORT),
        labelled(None, trace_id="x", input="And on Monday?", output="Monday, library", messages=hello),
        labelled(None, trace_id="y", input="And on Monday?", output="Monday, shop", messages=shop),
        {"question": "Again?", "answer": "one"},
        {"question": "Again?", "answer": "two"},
        labelled(None, trace_id="same", input="One thing?", output="a"),
        labelled(None, trace_id="alone", input="Alone?", output="a"),
    ]
    b = [
        {"question": "Again?", "answer": "longer one"},
        labelled(None, trace_id="p", input="And  on Monday?", output="Monday, shop, six", messages=shop),
        labelled(None, trace_id="q", input="And on Monday?", output="Monday, library, five", messages=hello),
        {"question": "Again?", "answer": "longer two"},
        *rows(LONG),
        labelled(None, trace_id="same", input="Another thing?", output="b"),
        labelled(None, trace_id="alone too", input="Alone as well?", output="b"),
    ]
    ended = run("evaluate", "--compare", *files(a, b), *OUTPUT)
    assert ended.code == 1, "rows without partner must not go unnoticed in a script"
    assert "without partner, and left out: 2 rows of A and 2 rows of B" in words(ended.err)
    pairs = {frozenset(shown(call.body).values()) for call in endpoint.calls}
    assert pairs == {
        frozenset(pair)
        for pair in (
            (SHORT, LONG),
            ("Monday, library", "Monday, library, five"),
            ("Monday, shop", "Monday, shop, six"),
            ("one", "longer one"),
            ("two", "longer two"),
        )
    }
    assert [verdict.details["compared_with"] for verdict in verdicts()][1:3] == ["y", "x"]
    assert len({verdict.evaluation_id for verdict in verdicts()}) == 5


def test_files_that_do_not_match_are_refused_before_any_request(run: Run, endpoint: ChatEndpoint) -> None:
    a = rows(*[SHORT] * 3, prefix="a")
    b = [labelled(None, trace_id=f"b{number}", input="Something else?", output=LONG) for number in range(2)]
    arguments = ("evaluate", "--compare", *files(a, b), *OUTPUT)
    ended = run(*arguments)
    assert (ended.code, Path("out.jsonl").exists()) == (1, False)
    Path("out.jsonl").write_text("earlier\n", encoding="utf-8")
    assert run(*arguments, "--force").code == 1
    assert Path("out.jsonl").read_text(encoding="utf-8") == "earlier\n"
    assert run(*arguments).code == 2, "nor is a file overwritten without --force"
    assert words(ended.err) == (
        "Error: nothing to compare: 3 rows of A and 2 rows of B have no partner "
        "with the same trace_id or the same input"
    )
    assert endpoint.calls == ()


def test_the_measure_is_a_criterion_or_that_of_a_judge(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers(prefers(longer))
    own = Path("tone.toml")
    own.write_text('instructions = "Is {{ outputs }} a friendly answer to {{ inputs }}?"\n', encoding="utf-8")
    context = {"context": ["It is open from nine to six."]}
    paths = files(rows(SHORT, **context), rows(LONG, **context))
    ended = run(
        "evaluate", "--compare", *paths, "--criterion", "The shorter one is better.", "--judge", "groundedness", *OUTPUT
    )
    assert ended.code == 0, ended.err
    assert [(verdict.judge, verdict.scores[0].metric) for verdict in verdicts()] == [
        ("pairwise", "pairwise"),
        ("pairwise_groundedness", "pairwise_groundedness"),
    ]
    assert len({verdict.judge_version for verdict in verdicts()}) == 2
    fixed = {call.body["messages"][0]["content"] for call in endpoint.calls}
    assert sorted("The shorter one is better." in text for text in fixed) == [False, True]
    assert sorted("You check claims against documents." in text for text in fixed) == [False, True]
    endpoint.behaviour = answers('{"rationale": "So.", "result": "tie"}')
    endpoint.forget()
    assert run("evaluate", "--compare", *paths, "--judge", own).code == 0
    asked = endpoint.calls[0].text()
    assert "Is {{ outputs }} a friendly answer" in asked
    assert "<<first outputs " in asked
    assert "It is open from nine" in asked
    endpoint.behaviour = yes_no()
    assert run("evaluate", "--compare", *paths, "--judge", own).code == 1, "yes is no answer to this question"


def test_documents_that_differ_are_shown_with_neither_answer(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers(prefers(longer))
    a, b = (rows(text, context=[document]) for text, document in ((SHORT, "Of A."), (LONG, "Of B.")))
    assert run("evaluate", "--compare", *files(a, b)).code == 0
    assert not [call for call in endpoint.calls if "<<document" in call.body["messages"][-1]["content"]]
    assert run("evaluate", "--compare", *files(a, b), "--judge", "groundedness", *OUTPUT).code == 1
    assert [verdict.reason for verdict in verdicts()] == ["missing_input"]


def test_both_answers_are_redacted(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_REDACT", json.dumps({"builtin": True}))
    endpoint.behaviour = answers(prefers(longer))
    paths = files(rows("Write to a@example.com."), rows("Please write to b@example.com."))
    assert run("evaluate", "--compare", *paths).code == 0
    assert len(endpoint.calls) == 2
    assert not [call for call in endpoint.calls if "example.com" in call.text()]


REFUSED = {
    "--criterion is for --compare": ("b.jsonl", "--judge", "safety", "--criterion", "Short."),
    "--combine does not go with --compare": ("--compare", "a.jsonl", "b.jsonl", "--combine", "mean"),
    "--criterion is empty": ("--compare", "a.jsonl", "b.jsonl", "--criterion", " "),
    "both read standard input": ("--compare", "-", "-"),
    "--judge context_sufficiency: two answers cannot be compared by it": (
        *("--compare", "a.jsonl", "b.jsonl", "--judge", "context_sufficiency"),
    ),
    "--judge user_frustration: two answers cannot be compared by it": (
        *("--compare", "a.jsonl", "b.jsonl", "--judge", "user_frustration"),
    ),
    "a.jsonl is the input": ("--compare", "a.jsonl", "b.jsonl", "--output", "a.jsonl", "--force"),
}


def test_options_that_exclude_each_other_are_wrong_usage(run: Run, endpoint: ChatEndpoint) -> None:
    files(rows(SHORT), rows(LONG))
    for message, arguments in REFUSED.items():
        ended = run("evaluate", *arguments)
        assert (ended.code, message in words(ended.err)) == (2, True), (arguments, ended.err)
    assert endpoint.calls == ()


def test_a_line_that_is_no_trace_is_named_with_its_file(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = answers(prefers(longer))
    write_lines("a.jsonl", [*rows(SHORT), b"{"])
    write_lines("b.jsonl", rows(LONG))
    ended = run("evaluate", "--compare", "a.jsonl", "b.jsonl")
    assert ended.code == 1
    assert "line 2: is not JSON (in A)" in ended.err
