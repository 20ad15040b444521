"""A judge model that reads its material: an answer says itself which judge will think what of it."""

from typing import Any, Final, Literal

from support.replies import Behaviour, Call, Reply, answers_json, refuses

__all__ = ["Opinion", "asking", "reads", "remark"]

Opinion = Literal["bad", "unknown", "refusal"]
_OPINIONS: Final[tuple[Opinion, ...]] = ("bad", "unknown", "refusal")
_GOOD_GRADE: Final = 4
_RATIONALE: Final = "Let's think step by step. It says so itself."


def remark(judge: str, opinion: Opinion) -> str:
    """Write the sentence of an answer that a judge goes by; what bears none for it is good."""
    return f"For {judge} it is {opinion}."


def asking(call: Call) -> str:
    """Name the judge that asks: it is the name of the schema."""
    name: str = call.body["response_format"]["json_schema"]["name"]
    return name


def reads(call: Call) -> Behaviour:
    """Answer in the form that is asked for, by what the answer says of itself."""
    judge, material = asking(call), call.text()
    opinion = next((each for each in _OPINIONS if remark(judge, each) in material), None)
    return refuses() if opinion == "refusal" else _reply(_form(call), opinion)


def _form(call: Call) -> dict[str, Any]:
    properties: dict[str, Any] = call.body["response_format"]["json_schema"]["schema"]["properties"]
    return properties


def _reply(form: dict[str, Any], opinion: Opinion | None) -> Reply:
    if "sentences" in form:
        label = "unsupported" if opinion else "supported"
        line = {"sentence": "It.", "label": label, "rationale": "So.", "excerpt": "words that stand nowhere in it"}
        return answers_json({"sentences": [line]})
    if "score" in form:
        return answers_json({"justification": "It says so itself.", "score": 1 if opinion else _GOOD_GRADE})
    result = {"bad": "no", "unknown": "unknown", None: "yes"}[opinion]
    return answers_json({"rationale": _RATIONALE, "result": result})
