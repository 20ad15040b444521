"""`tracejudge judges test`: agreement with labels, shares, and the exit code that makes it a check."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cases import each_case
from support.cli_parts import SAMPLES, Run, labelled, scripted, words, write_lines

from judges.endpoints import client
from judges.registry import catalogue


def test_agreement_with_labels_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 0.0}
    answers = ("yes", "yes", "no", "no", "yes", "timeout", "unknown", "no")
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, price=price))
    labels = ("yes", "pass", "yes", "no", "0", "yes", "no", "FALSE", None)
    ended = run(
        "judges",
        "test",
        "safety",
        write_lines("t.jsonl", [*map(labelled, labels)]),
        "--label",
        "safe",
        "--tries",
        "1",
        "--json",
    )
    assert ended.code == 0
    figures = ended.document
    tokens = sum(len(json.dumps({"rationale": "So.", "result": answer})) for answer in answers if answer != "timeout")
    assert figures.pop("cost_usd") == pytest.approx(tokens * 1000 / 1e6)
    assert figures == {
        "judge": "safety",
        "metric": "safety",
        "version": catalogue()["safety"].version,
        "model": "m",
        "traces": 8,
        "notes": {"scripted: timeout": 1},
        "balanced_accuracy": pytest.approx((2 / 3 + 2 / 3) / 2),
        "true_pass": 2,
        "false_pass": 1,
        "true_fail": 2,
        "false_fail": 1,
        "unscored": {"timeout": 1, "abstained": 1},
        "mean_yes": pytest.approx(2 / 3),
        "mean_no": pytest.approx(1 / 3),
    }


def test_the_last_label_of_a_conversation_is_its_label(run: Run) -> None:
    asked = [("s1", None), ("s1", "no"), ("s2", "yes"), ("s2", None), ("s3", None), (None, "yes"), ("s1", "yes")]
    traces = [
        labelled(label, trace_id=f"{place}", input="Is it warm?", **({"session_id": name} if name else {}))
        for place, (name, label) in enumerate(asked)
    ]
    ended = run("judges", "test", "user_frustration", write_lines("t.jsonl", traces), "--label", "safe", "--json")
    assert ended.code == 0
    assert (ended.document["traces"], ended.document["true_pass"]) == (3, 3)


@each_case(("minimum", "code"), [("0.6", 0), ("0.75", 0), ("0.76", 1), ("1.0", 1)])
@each_case("form", [[], ["--json"]], ids=["table", "json"])
def test_a_minimum_makes_it_a_check(
    run: Run, monkeypatch: pytest.MonkeyPatch, minimum: str, code: int, form: list[str]
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "yes", "no", "yes"))
    file = write_lines("t.jsonl", [*map(labelled, ("yes", "yes", "no", "no"))])
    ended = run("judges", "test", "safety", file, "--label", "safe", "--min", minimum, *form)
    assert ended.code == code
    assert (f"balanced accuracy is below {minimum}" in ended.err) is bool(code)
    if form:
        assert ended.document["balanced_accuracy"] == 0.75
    else:
        assert "balanced accuracy: 0.750 (0.5 is chance)" in ended.out


def test_a_minimum_is_not_reached_without_a_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("timeout"))
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    ended = run("judges", "test", "safety", file, "--label", "safe", "--min", "0", "--tries", "1")
    assert ended.code == 1
    assert "no figure: a label group is empty" in ended.out
    assert "unscored: 2 timeout; cost: no price set" in ended.out


def test_the_commonest_reasons_without_a_score_are_told(run: Run) -> None:
    lacking = [labelled(label) for label in ("yes", "no", "yes")]
    file = write_lines("t.jsonl", [*lacking, labelled("yes", input="Is it?", context=["It is."])])
    for expected, out in (("--label", "unscored: 3 missing_input\n"), ("--by", "use --label safe.\n")):
        ended = run("judges", "test", "groundedness", file, expected, "safe")
        assert ended.code == 0
        assert ended.out.endswith(f"{out}  3 x the trace has no input\n")
        document = run("judges", "test", "groundedness", file, expected, "safe", "--json").document
        assert document["notes"] == {"the trace has no input": 3}


def test_no_more_than_three_reasons_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ("bad_request", "content_filter", "bad_request", "timeout", "judge_rejected")
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", *reasons, max_in_flight=1))
    file = write_lines("t.jsonl", [labelled("yes", output=f"{number}") for number in range(6)])
    notes = run("judges", "test", "safety", file, "--label", "safe", "--tries", "1", "--json").document["notes"]
    assert len(notes) == 3
    assert next(iter(notes.items())) == ("scripted: bad_request", 2)


@each_case("expected", ["--label", "--by"])
@each_case("form", [[], ["--json"]], ids=["table", "json"])
def test_nothing_scored_is_no_success(run: Run, expected: str, form: list[str]) -> None:
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    ended = run("judges", "test", "groundedness", file, expected, "safe", *form)
    assert ended.code == 1
    assert ended.err.endswith("nothing was scored\n")


def test_another_tag_gives_shares_and_no_agreement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no", "yes", "bad_request"))
    file = write_lines("t.jsonl", [*map(labelled, ("en", "en", "de", "fr", None))])
    ended = run("judges", "test", "safety", file, "--by", "safe", "--json")
    assert ended.code == 0
    assert ended.document == {
        "judge": "safety",
        "metric": "safety",
        "version": catalogue()["safety"].version,
        "model": "m",
        "traces": 4,
        "cost_usd": None,
        "notes": {"scripted: bad_request": 1},
        "by": "safe",
        "groups": {
            "de": {"passed": 1, "scored": 1, "rated": 1, "mean": 1.0, "unscored": {}, "share": 1.0},
            "en": {"passed": 1, "scored": 2, "rated": 2, "mean": 0.5, "unscored": {}, "share": 0.5},
            "fr": {"passed": 0, "scored": 0, "rated": 0, "mean": None, "unscored": {"bad_request": 1}, "share": None},
        },
    }
    table = run("judges", "test", "safety", file, "--by", "safe").out
    assert "and no agreement. Cost: no price set" in table, "this tag has nothing to agree with"
    assert re.search(r"en\W+1\W+2\W+50.0%\W+0.500\W+none", table)


SAMPLE_TAGS = {"relevance_to_query": "relevant", "safety": "safe", "groundedness": "grounded", "correctness": "correct"}


@each_case(("judge", "tag"), SAMPLE_TAGS.items())
@each_case("service", ["code-helper", "summariser", "support-bot"])
def test_the_samples_are_measured_with_the_built_in_model(run: Run, service: str, judge: str, tag: str) -> None:
    """Every sample that bears the label is judged, and none stays unscored."""
    file = SAMPLES / f"{service}.jsonl"
    labels = [json.loads(line)["tags"].get(tag) for line in file.read_text(encoding="utf-8").split("\n") if line]
    figures = run("judges", "test", judge, file, "--label", tag, "--json").document
    assert figures["model"] == "lexical"
    assert figures["cost_usd"] is None
    assert figures["true_pass"] + figures["false_fail"] == labels.count("yes")
    assert figures["true_fail"] + figures["false_pass"] == labels.count("no")
    assert (figures["traces"], figures["unscored"]) == (labels.count("yes") + labels.count("no"), {})
    assert 0 <= figures["balanced_accuracy"] <= 1


def test_traces_without_a_field_that_a_judge_needs_are_unscored(run: Run) -> None:
    ended = run("judges", "test", "groundedness", SAMPLES / "code-helper.jsonl", "--by", "safe", "--json")
    unscored = [group["unscored"].get("missing_input", 0) for group in ended.document["groups"].values()]
    assert sum(unscored) == 19


MISUSE = {
    "unknown judge": (
        ["zzz", "t.jsonl", "--label", "safe"],
        f"there is no judge 'zzz'; known are {', '.join(sorted(catalogue()))}",
    ),
    "nearly a judge": (["safty", "t.jsonl", "--label", "safe"], "there is no judge 'safty'; did you mean safety?"),
    "unknown metric": (
        ["safety", "t.jsonl", "--label", "safe", "--metric", "truth"],
        "safety has no metric 'truth'; its metrics are safety",
    ),
    "descriptive metric": (
        ["ragbench", "t.jsonl", "--label", "safe", "--metric", "relevance"],
        "the metric relevance has no pass rule to compare yes and no with; adherence has",
    ),
    "no tag": (["safety", "t.jsonl"], "give --label TAG"),
    "both tags": (["safety", "t.jsonl", "--label", "safe", "--by", "safe"], "not both"),
    "minimum of shares": (["safety", "t.jsonl", "--by", "safe", "--min", "0.5"], "--min needs an agreement"),
    "inverted shares": (["safety", "t.jsonl", "--by", "safe", "--invert"], "--invert needs an agreement"),
    "unscored without a minimum": (
        ["safety", "t.jsonl", "--label", "safe", "--max-unscored", "0.5"],
        "--max-unscored needs --min",
    ),
    "minimum above one": (["safety", "t.jsonl", "--label", "safe", "--min", "2"], "not in the range"),
    "label that is none": (
        ["safety", "t.jsonl", "--label", "other"],
        "the tag 'other' holds other values than yes and no",
    ),
    "unknown model": (
        ["safety", "t.jsonl", "--label", "safe", "--model", "gpt"],
        "there is no [models.gpt]; known are default",
    ),
    "absent file": (["safety", "absent.jsonl", "--label", "safe"], "No such file or directory"),
}


@each_case(("arguments", "message"), MISUSE.values(), ids=MISUSE.keys())
def test_a_wrong_test_of_a_judge_is_exit_code_two(run: Run, arguments: Sequence[str], message: str) -> None:
    write_lines("t.jsonl", [labelled("yes"), {**labelled("no"), "tags": {"safe": "no", "other": "maybe"}}])
    ended = run("judges", "test", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in words(ended.err)


def test_an_unset_api_key_is_reported_by_its_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    model = {"base_url": "https://host/v1", "model": "m", "api_key_env": "ABSENT_KEY"}
    table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in model.items())
    Path("mine.toml").write_text(f"[models.default]\n{table}\n", encoding="utf-8")
    test = ("judges", "test", "safety", SAMPLES / "support-bot.jsonl", "--label", "safe")
    message = "models.default.api_key_env: the variable ABSENT_KEY is not set; export it, or leave the line out"
    # Not `worker`, which configures the logging of the whole process.
    for command in (test, ("evaluate", SAMPLES / "support-bot.jsonl", "--judge", "safety")):
        ended = run(*command, "--config", "mine.toml")
        assert (ended.code, ended.complaint) == (2, f"tracejudge: mine.toml: {message}"), command
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    assert run(*test).complaint == f"tracejudge: TRACEJUDGE_MODELS: {message}"


@each_case("line", [b"{", b"\xff", b'{"trace_id": 7}'], ids=["no JSON", "no UTF-8", "no trace"])
def test_a_labelled_file_with_a_bad_line_is_not_measured(run: Run, line: bytes) -> None:
    ended = run("judges", "test", "safety", write_lines("t.jsonl", [labelled("yes"), line]), "--label", "safe")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Error: t.jsonl: line 2 is ")


def test_several_files_are_measured_together(run: Run) -> None:
    files = sorted(SAMPLES.glob("*.jsonl"))
    figures = run("judges", "test", "safety", *files, "--label", "safe", "--json").document
    assert (figures["traces"], figures["unscored"]) == (63, {})


def test_the_first_metric_with_a_pass_rule_is_measured_unless_another_is_named(run: Run) -> None:
    file = SAMPLES / "support-bot.jsonl"
    figures = run("judges", "test", "ragbench", file, "--label", "grounded", "--json").document
    assert figures["metric"] == "adherence"
    rtc = ["judges", "test", "relevance_truth_completeness", file, "--label", "relevant"]
    assert [run(*rtc, *named, "--json").document["metric"] for named in ([], ["--metric", "truth"])] == [
        "relevance",
        "truth",
    ]


def rated(relevance: int, truth: int) -> dict[str, str]:
    return {"text": json.dumps({"relevance": relevance, "truth": truth, "completeness": 1})}


def test_a_graded_judge_shows_means_beside_the_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = write_lines("steps.jsonl", [rated(1, 5), rated(1, 4), rated(5, 2)])
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": {"provider": "scripted", "script": steps}}))
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"relevance_truth_completeness": {"reasoning": False}}))
    file = write_lines("t.jsonl", [labelled(label, input="Is it?") for label in ("yes", "yes", "no")])
    arguments = ["judges", "test", "relevance_truth_completeness", file, "--label", "safe", "--metric", "truth"]
    figures = run(*arguments, "--json").document
    assert (figures["balanced_accuracy"], figures["mean_yes"], figures["mean_no"]) == (1.0, 0.875, 0.25)
    table = run(*arguments).out
    assert "relevance_truth_completeness truth by scripted" in words(table)
    assert re.search(r"yes\W+2\W+0\W+0.875", table)
    assert re.search(r"no\W+0\W+1\W+0.250", table)


def test_a_descriptive_metric_has_means_and_no_share(run: Run) -> None:
    file = SAMPLES / "support-bot.jsonl"
    groups = run("judges", "test", "ragbench", file, "--by", "safe", "--metric", "relevance", "--json").document[
        "groups"
    ]
    for group in groups.values():
        assert (group["share"], group["rated"], group["passed"]) == (None, 0, 0)
        assert 0 <= group["mean"] <= 1


def test_the_configured_judge_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["judges", "test", "ragbench", SAMPLES / "support-bot.jsonl", "--label", "grounded", "--json"]
    before = run(*arguments).document["version"]
    monkeypatch.setenv("TRACEJUDGE_JUDGES", json.dumps({"ragbench": {"lengths": True}}))
    assert run(*arguments).document["version"] != before


def test_a_transient_failure_is_retried(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("judge_unavailable", "yes"))
    monkeypatch.setattr(client, "_FIRST_BACKOFF_S", 0.001)
    figures = run("judges", "test", "safety", write_lines("t.jsonl", [labelled("yes")]), "--label", "safe", "--json")
    assert (figures.document["true_pass"], figures.document["unscored"]) == (1, {})


def test_no_tag_commands_the_screen(run: Run) -> None:
    trace = {**labelled(None), "tags": {"[/dim]": "[bold]"}}
    ended = run("judges", "test", "safety", write_lines("t.jsonl", [trace]), "--by", "[/dim]")
    assert ended.code == 0
    assert "[bold]" in ended.out
    assert "[/dim]" in ended.out


def test_a_tag_that_no_trace_has_is_exit_code_two(run: Run) -> None:
    tagged = {**labelled(None), "tags": {"team": "a", "\x1b[2J": "b", "clear": "yes"}}
    for line, there in ((tagged, "the tags are clear, team"), (labelled(None), "no trace has any tag")):
        ended = run("judges", "test", "safety", write_lines("t.jsonl", [line]), "--label", "zzz")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.endswith(f"no trace of t.jsonl has the tag 'zzz'; {there}\n")


def test_the_file_of_a_judge_is_suggested_for_its_name(run: Run) -> None:
    Path("judges.d").mkdir()
    Path("judges.d/clear_answer.toml").write_text('instructions = "Is {{ outputs }} clear?"', encoding="utf-8")
    ended = run("judges", "test", "clear_answer", write_lines("t.jsonl", [labelled("yes")]), "--label", "safe")
    assert ended.code == 2
    message = "there is no judge 'clear_answer'; give its file judges.d/clear_answer.toml, or set judges_folder"
    assert message in words(ended.err)


def test_a_check_without_some_of_the_traces_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lucky rest must not pass for the whole."""
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no", "judge_rejected", max_in_flight=1))
    lines = [labelled(label, output="a") for label in ("yes", "no", "yes")]
    ended = run("judges", "test", "safety", write_lines("t.jsonl", lines), "--label", "safe", "--min", "0.5")
    assert ended.code == 1
    assert "some traces are not judged (judge_rejected): no check without them" in words(ended.err)


@pytest.mark.parametrize("reason", ["bad_request", "content_filter"])
def test_a_check_fails_where_too_many_traces_are_unscored(
    run: Run, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    other = "content_filter" if reason == "bad_request" else "bad_request"
    answers = ("yes", "no", reason, other, reason, *["yes"] * 5)
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, max_in_flight=1))
    lines = [labelled("no" if answer == "no" else "yes", output=f"{n}") for n, answer in enumerate(answers)]
    arguments = ("judges", "test", "safety", write_lines("t.jsonl", lines), "--label", "safe")
    ended = run(*arguments, "--min", "0.9")
    message = f"30.0% of the traces are unscored, most of them {reason}; --max-unscored allows 10.0%"
    assert (ended.code, ended.err.splitlines()) == (1, [message])
    assert run(*arguments, "--min", "0.9", "--max-unscored", "0.3").code == 0
    assert run(*arguments).code == 0


def test_a_minimum_that_is_just_reached_is_reached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of 17 in 20 and 19 in 20 is 0.9, and less as a float."""
    answers = (*["yes"] * 17, *["no"] * 3, "yes", *["no"] * 19)
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, max_in_flight=1))
    lines = [labelled("yes" if n < 20 else "no", output=f"{n}") for n in range(40)]
    ended = run("judges", "test", "safety", write_lines("t.jsonl", lines), "--label", "safe", "--min", "0.9")
    assert (ended.code, ended.err) == (0, "")
    assert "balanced accuracy: 0.900" in ended.out


def test_a_share_without_scores_that_is_just_allowed_is_allowed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """29 % of 100 are 29, and less as a float."""
    answers = ("no", *["yes"] * 70, *["bad_request"] * 29)
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, max_in_flight=1))
    lines = [labelled("yes" if n else "no", output=f"{n}") for n in range(100)]
    arguments = ("judges", "test", "safety", write_lines("t.jsonl", lines), "--label", "safe", "--min", "1")
    assert run(*arguments, "--max-unscored", "0.29").code == 0
    assert run(*arguments, "--max-unscored", "0.28").code == 1


def choose_heuristic() -> None:
    Path("tracejudge.toml").write_text('[models.default]\nprovider = "lexical"\n', encoding="utf-8")


def test_too_many_traces_without_needed_fields_fail_the_test(run: Run) -> None:
    choose_heuristic()
    whole = {"input": "Is it?", "context": ["It is."]}
    lines = [labelled("yes", **whole), labelled("no", **whole, output="Never."), *[labelled("yes")] * 2]
    ended = run(
        "judges", "test", "groundedness", write_lines("t.jsonl", lines), "--label", "safe", "--min", "0", "--json"
    )
    assert ended.code == 1
    assert "50.0% of the traces are unscored, most of them missing_input" in ended.err


def test_an_abstained_verdict_is_an_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no", "unknown", "unknown"))
    file = write_lines("t.jsonl", [*map(labelled, ("yes", "no", "no", "yes"))])
    assert run("judges", "test", "safety", file, "--label", "safe", "--min", "1").code == 0


@pytest.mark.parametrize(("label", "group"), [("yes", "fail"), ("no", "pass")])
def test_a_minimum_without_one_of_the_groups_says_so(run: Run, label: str, group: str) -> None:
    choose_heuristic()
    file = write_lines("t.jsonl", [labelled(label)])
    ended = run("judges", "test", "safety", file, "--label", "safe", "--min", "0.5")
    assert (ended.code, ended.err) == (
        1,
        f"there is no balanced accuracy: no trace with a score should {group}; --min needs both groups\n",
    )


def test_yes_may_mean_that_a_trace_should_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("no", "no", "yes", "no"))
    file = write_lines("t.jsonl", [*map(labelled, ("yes", "yes", "no", "no"))])
    arguments = ("judges", "test", "safety", file, "--label", "safe", "--invert")
    document = run(*arguments, "--json").document
    cells = [document[key] for key in ("inverted", "true_pass", "false_fail", "true_fail", "false_pass")]
    assert (cells, document["balanced_accuracy"]) == ([True, 1, 1, 2, 0], 0.75)
    assert re.search(r"no\W+1\W+1\W+yes\W+0\W+2\W", run(*arguments).out)


def test_no_progress_bar_and_no_wrapped_line_without_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-model-with-a-name-that-is-longer-than-any-terminal-is-wide-" * 2
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no", model=name))
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    ended = run("judges", "test", "safety", file, "--label", "safe")
    assert ended.err == ""
    assert f"safety by {name}" in ended.out


def test_a_minimum_that_the_heuristic_would_answer_for_want_of_a_configuration_is_wrong_usage(
    run: Run,
) -> None:
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    arguments = ("judges", "test", "safety", file, "--label", "safe")
    assert run(*arguments).code == 0, "without a minimum it decides nothing"
    ended = run(*arguments, "--min", "0")
    assert (ended.code, ended.out) == (2, "")
    assert "--min measures nothing: no configuration" in words(ended.err)
    assert "give --config FILE, or set TRACEJUDGE_CONFIG" in words(ended.err)
    choose_heuristic()
    assert run(*arguments, "--min", "0").code == 0, "the heuristic was chosen"
