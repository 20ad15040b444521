"""Judges of whole conversations, in words and in Python, on live traffic."""

from pathlib import Path

from msgspec.structs import replace
from support.pipeline import Pipeline, make_traces

TURNS = """\
from judges.code import judge, turns


@judge(unit="session", version="1")
def three_turns(trace) -> bool:
    return [message.content for message in turns(trace)] == [f"Question {number}?" for number in range(3)] + ["Bye."]
"""


def test_judges_of_conversations_in_words_and_in_python_judge_a_session_once(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "at_ease.toml").write_text(
        'unit = "session"\ninstructions = "Is the user of {{ conversation }} at ease?"', encoding="utf-8"
    )
    (folder / "turns.py").write_text(TURNS, encoding="utf-8")
    (folder / "three_turns.toml").write_text('code = "turns.py:three_turns"', encoding="utf-8")
    rule = {"name": "sessions", "unit": "session", "judges": ["at_ease", "three_turns"]}
    pipeline.worker(rules=[rule], session_idle=1.0, judges_folder=str(folder))
    traces = make_traces(3, session_id="s1")
    questions = [f"Question {number}?" for number in range(3)]
    pipeline.publish(
        [
            replace(trace, input=questions[place], output="Bye." if place == 2 else "", started_at=100.0 + place)
            for place, trace in enumerate(traces)
        ]
    )
    account = pipeline.settled(3)
    assert (account.sampled, account.chosen, account.scored, account.lost) == (3, 2, 2, 0)
    verdicts = {entry.verdict.judge: entry.verdict for entry in pipeline.outbox()}
    assert verdicts.keys() == {"at_ease", "three_turns"}
    assert {verdict.details["session"]["traces"] for verdict in verdicts.values()} == {3}
    assert [score.passed for score in verdicts["three_turns"].scores] == [True]
