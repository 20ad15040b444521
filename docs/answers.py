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
- **asked once more, then `invalid_answer`**: the model is shown its answer and the error once. If the second answer
  cannot be read either, the verdict is unscored with this reason.
- **asked once more, then `out_of_range`**: a word that was not offered, such as a synonym. The model is asked for one of
  the offered labels.
- **`invalid_answer` at once**: there is nothing to show the model.
- **`out_of_range`**: a number off the scale, or a fraction of a whole-number scale. It is final: a second asking would be
  a second opinion.
- **`refusal`**, **`content_filter`**, **`truncated`**: what the endpoint says of the answer counts, whatever its text. A
  short answer that declines in words ("I can't help with that"), in any of ten languages (English, Chinese, Hindi,
  Spanish, French, Arabic, Portuguese, Russian, German, Japanese) and without a verdict, is a refusal too.
- **abstained**: the model found that nothing can be said. No score and no error.

## What is read

Every form has one reading; nothing is guessed.

| part of the answer | what is read |
| --- | --- |
| thoughts | What stands before the last closing mark (`</think>`, `</thinking>`, `</thought>`, `</reasoning>`, `[/THINK]`, Gemma's `<channel|>`, MedGemma's `<unused95>`) is not read, also where the opening mark is missing; of harmony's channels the final one is read, or a function call in the commentary. A mark quoted in the object of the answer does not count. Thoughts without an end are no answer. |
| objects | JSON; in a fence, between prose, in a wrapper object, in the call of a tool, or in a JSON string; without the first brace, if the caller wrote it. |
| other notations | Labelled lines (`Result: yes`), headings, lists, YAML, XML elements, and Markdown tables. `Final` or `Overall` may stand before the label of the verdict (`Final Result: no`). |
| keys | In any case, and in snake, camel or spaced form. `score`, `rating` and `grade` stand for each other where one of them is asked for; so do `result`, `verdict` and `judgement`, and the usual names of reasons. Another value under such a name beside the asked key is a second verdict. Null stands for empty reasons. |
| one verdict without keys | The whole text is the value; or the value stands on the first or last line with a blank line beside it; or on a line of its own in `[[ ]]`, bold, a code mark or a box. |
| decoration of a value | Quotation marks, Markdown, brackets, `\\boxed{}`, a list sign, full-width letters and final signs are removed; a question mark stays. An object with nothing but the value and reasons (`{"value": "no"}`) is the value. |
| labels | In any case, with `_` or `-` for a blank. `true` and `false` stand for yes and no, and these for `true` and `false`; so do `Y`, `N`, and a sign beside the word that says the same (`yes ✅`). |
| numbers | `4`, `4.0`, `"4"`, `four` (one to ten), `.8`, `4 (Good)`, `4 - Good`; `4/5` and `4 out of 5` where 5 is the highest value. |
| several answers | They count once if all agree. If two differ, or the text around the answer states another verdict ("Verdict: no", "Sorry, I meant no") or withdraws it ("Wait, I overlooked one"), the model is asked once more. Remarks on the material that use another value ("The document says no") change nothing. All objects of `facts_grounding` are one answer; a list that stands there twice counts once, and a summary behind them is left out unless it names other labels. |

Not read: fractions of a whole-number scale, numbers off the scale or of another scale (`8/10` where 5 is the highest),
ranges (`3-4`), shares (`80%`), doubts (`yes?`), several labels, synonyms and other languages, prose that holds a verdict, and
comma-separated values.

## Verdicts in the material

A verdict that stands in the material is none, whoever planted it: not as the whole answer, copied word for word (from
120 characters on; a shorter copy is requested once more, since an honest answer may be the same); not beside the
model's own answer, in whatever form; not quoted
inside a value; not between the marks of a request that the answer repeats; and not where the answer breaks off
behind the quotation or goes on after it. What no reader can tell is a planted verdict that the model gives in words of
its own, or quotes in prose without saying anything of its own: that is its answer.
"""  # noqa: E501 - rows of a table

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
