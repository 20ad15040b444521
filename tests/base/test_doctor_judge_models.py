"""`tracejudge doctor`: calibrations of earlier versions, and judge models of the judged model's family."""

from msgspec import structs
from support.stage_parts import Keyspace, make_verdict, settings_of

from judges.core.model import ModelSettings
from worker.base.doctor.command import families, same_family
from worker.base.doctor.finding import ok
from worker.base.doctor.lint import setting_warnings
from worker.core.config.settings import COMBINE, Rule, Settings

DECIDER = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="decider")


def test_models_that_leave_their_maker_s_api_are_named() -> None:
    for name, end in (
        ("gpt-4.1-mini", "2027-01-14"),
        ("openai/gpt-4.1-mini-2025-04-14", "2027-01-14"),
        ("GPT-5-mini", "2026-12-11"),
        ("claude-3-5-haiku-20241022", "2026-02-19"),
        ("gpt-6-luna", None),
        ("gpt-4.1-mini-of-ours", None),
        ("llama", None),
    ):
        settings = Settings(models={"default": ModelSettings(base_url="http://localhost:9/v1", model=name)})
        ending = [fault for fault in setting_warnings(settings) if fault.code == "ending-model"]
        assert len(ending) == (end is not None), name
        for fault in ending:
            assert fault.text == f"{name} of [models.default] leaves its maker's API on {end}"
            assert fault.fix.startswith("choose "), name


def test_models_have_families() -> None:
    for name, expected in (
        ("gpt-6-luna", {"GPT"}),
        ("openai/o3-mini", {"GPT"}),
        ("us.anthropic.claude-sonnet-4", {"Claude"}),
        ("majority(gemini-2.5-flash,Llama-3.1-8B)", {"Gemini", "Llama"}),
        ("DeepSeek-R1-Distill-Qwen-7B", {"DeepSeek", "Qwen"}),
        ("o100", set()),
        ("innova-2", set()),
        ("decider-1", set()),
        ("", set()),
    ):
        assert families(name) == expected, name


def test_a_model_that_judges_its_own_family_is_named(keyspace: Keyspace) -> None:
    judge = ModelSettings(provider="openai", model="gpt-6-luna", label="strict")
    settings = structs.replace(settings_of(keyspace), models={"default": judge})
    verdict = make_verdict(judge_model="strict", model="claude-sonnet-4")
    keyspace.send(verdict, structs.replace(verdict, evaluation_id="b", model=None))
    assert same_family(settings, keyspace.store) == [ok("model families", "no model judges answers of its own family")]
    keyspace.send(structs.replace(verdict, evaluation_id="c", model="gpt-5"))
    (finding,) = same_family(settings, keyspace.store)
    assert (finding.result, finding.what) == (
        "warning",
        "strict judges answers of gpt-5: both are of the family GPT (1 of the newest 3 verdicts)",
    )
    panel = COMBINE.with_value(Rule(name="all", judges=("safety",), model=("default", "other")), "majority")
    models = settings.models | {"other": ModelSettings(provider="openai", model="o3")}
    _, finding = same_family(structs.replace(settings, models=models, rules=(panel,)), keyspace.store)
    assert finding.what == "o3 and strict vote in majority(o3,strict): both are of the family GPT"
