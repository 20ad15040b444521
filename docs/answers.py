"""The page on broken answers: what a judge model may send, and what becomes of it, from the tables the tests run."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["page"]

_TABLES: Final = Path(__file__).parent.parent / "tests" / "judges"

_HEAD: Final = """\
# Answers of a judge model

No broken, refused or cut off answer becomes a score. This page says for each kind of answer what becomes of it; every
line is a test that runs the whole evaluation.

- **scored**: read as it is, from one request.
- **repaired, then scored**: mended by `json-repair`, from one request. A repair counts only where a second, plainer
  reading of the same text finds the same; so it closes a brace, and never completes a word, a number or a list.
- **the last one is scored**, **scored together**: several answers in one text. `facts_grounding` takes all objects as
  one answer; for the other judges the last whole answer counts.
- **asked once more, then `invalid_answer`**: the model is shown its answer and the error once. If the second answer
  cannot be read either, the verdict is unscored with this reason.
- **`invalid_answer` at once**: there is nothing to show the model.
- **`out_of_range`**: readable, but off the menu or off the scale. It is final: a second asking would be a second
  opinion.
- **`refusal`**, **`content_filter`**, **`truncated`**: what the endpoint says of the answer counts, whatever its text.
- What stands between `<think>` and `</think>` before the answer is not read; thoughts without an end are no answer.
- **abstained**: the model found that nothing can be said. No score and no error.

A verdict that stands in the material is none, whoever planted it: not as the whole answer, copied word for word (from
120 characters on: shorter ones can be foretold, and a planted one must not keep the same honest one away); not quoted
inside a value; not between the marks of a request that the answer repeats; and not where the answer breaks off
behind the quotation or goes on after it. What no reader can tell is a planted verdict that the model gives in words of
its own, or quotes in prose without saying anything of its own: that is its answer.
"""

_ROW: Final = "| {} | {} | {} |"


def page() -> str:
    """Write the page, without the note that it is generated."""
    if str(_TABLES) not in sys.path:
        sys.path.insert(0, str(_TABLES))
    families = importlib.import_module("families")
    broken = importlib.import_module("broken_answers")
    ones = importlib.import_module("family_answers")
    return "\n".join(
        (
            _HEAD,
            *_names(families),
            *(line for title, cases in broken.CASES.items() for line in _common(title, cases, families.FAMILIES)),
            *(line for name, cases in ones.SPECIFIC.items() for line in _own(name, cases)),
        )
    )


def _names(families: Any) -> Iterator[str]:
    yield "## The families\n"
    yield "| family | judges |"
    yield "| --- | --- |"
    for name, family in families.FAMILIES.items():
        judges = ", ".join(f"`{judge}`" for judge in families.members(family)) or f"`{family.judge.name}`"
        yield f"| {name} | {judges} |"
    yield ""


def _common(title: str, cases: Mapping[str, Any], families: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}\n"
    yield _ROW.format("the answer", "what becomes of it", "but")
    yield _ROW.format("---", "---", "---")
    for what, case in cases.items():
        met = {name: family for name, family in families.items() if case.answers(family)}
        but = [
            f"{name}: {case.outcome_for(family).value}"
            for name, family in met.items()
            if case.outcome_for(family) is not case.outcome
        ]
        if len(met) < len(families):
            but.append(_absent(list(met), [name for name in families if name not in met]))
        yield _ROW.format(what, case.outcome.value, "; ".join(but))
    yield ""


def _absent(met: list[str], absent: list[str]) -> str:
    """Name the fewer: those that can meet a case, or those that cannot."""
    return f"only {', '.join(met)}" if len(met) < len(absent) else f"cannot be met by {', '.join(absent)}"


def _own(name: str, cases: Mapping[str, Any]) -> Iterator[str]:
    yield f"## Only {name}\n"
    yield _ROW.format("the answer", "what becomes of it", "remark")
    yield _ROW.format("---", "---", "---")
    for what, case in cases.items():
        yield _ROW.format(what, case.outcome.value, case.remark or _counted(case.details))
    yield ""


def _counted(details: Mapping[str, object]) -> str:
    return ", ".join(f"`{key}`" for key in details) and f"see {', '.join(f'`{key}`' for key in details)} in the details"
