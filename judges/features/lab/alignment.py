"""Alignment: find guidance that makes a judge agree with people's labels.

The judge model itself derives the guidance from traces on which judge and people disagree. ``memory`` repeats this with
the best guidance so far; ``gepa`` leaves the choice of guidance and traces to the GEPA optimizer. Both see only the
traces to learn from. Whether the guidance helps is measured afterwards, on traces that took no part in the search.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from judges.agreement.labelled import Judged, Labelled, says_yes
from judges.agreement.paired import balanced, is_right
from judges.calling.evaluation import prepared
from judges.core.judge import RESULT, AnsweredPrompt, Judge, Metric, Reading
from judges.core.prompt import MATERIAL_RULES, Block, Prompt, documents
from judges.core.verdict import PASSING_REASONS, Assessment
from judges.custom.free_form import FreeForm
from judges.custom.guidance import MAX_RULE_CHARS
from judges.custom.results import ParsedAnswer, Result
from judges.parsing.answer import InvalidAnswerError
from tracejudge import Trace

_MAX_DERIVED: Final = 8
_OUTPUT_TOKENS: Final = 4096
# Cases of one request. More of them make the rules no better, and are cut first if they do not fit.
_MAX_WRONG: Final = 16
_MAX_RIGHT: Final = 6
_MAX_CASE_CHARS: Final = 6000
_FIXED_TEXT: Final = f"""\
You write the guidance of a judge. The judge is a model that rates the work of AI applications by criteria. People \
have given the right verdicts for some traces, and the judge disagrees with them on part of these. Find out by what \
the people decide, and write it as guidance with which the judge will agree with them, also on traces that it has not \
seen.

The material
- `criteria`: what the judge is told. They stay as they are.
- `guidance`: the rules that the judge follows besides.
- The documents are cases: the verdict that the people gave, that of the judge with its reasons, and what the judge saw.

How to work
1. Compare the cases on which the verdicts differ, first those that the judge passes and the people fail, then the \
reverse. Find what the cases of a kind have in common that the judge overlooks or weighs otherwise than the people.
2. Write the whole new guidance, at most {_MAX_DERIVED} rules. Keep the rules of the present guidance that the cases \
bear out, change those that they contradict, and add what is missing.
3. A rule is one or two sentences, which say what to look for and which verdict follows. It is general: it names no \
case, person, product or figure.
4. Cases on which judge and people agree must keep their verdict.
5. Where the differences have nothing in common, answer with the present guidance, or with an empty list if there is \
none."""


class NotJudgedError(Exception):
    """A request ended for a reason that passes, so that no agreement can be measured."""


def _deriver() -> Judge:
    """Make the judge whose result is guidance: it is asked, repaired and bounded as every other."""
    result = Result(FreeForm("list"))
    fixed = f"{_FIXED_TEXT}\n\n{MATERIAL_RULES}\n\n{result.form}"

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        shown = (Block("criteria", trace.input or ""), Block("guidance", trace.output), *documents(trace.context))
        return (Prompt(fixed, shown),)

    def read(text: str) -> ParsedAnswer:
        answer = result.read(text)
        rules = [" ".join(rule.split()) for rule in answer.value] if isinstance(answer.value, list) else []
        if len(rules) > _MAX_DERIVED or any(len(rule) > MAX_RULE_CHARS for rule in rules):
            raise InvalidAnswerError(f"`result` has more than {_MAX_DERIVED} rules, or one that is too long")
        return answer._replace(value=list(filter(None, rules)))

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        answer: ParsedAnswer = answered[0].answer
        return Reading((), answer.rationale, {RESULT: answer.value})

    return Judge(
        name="alignment",
        asks="By what do people decide?",
        metrics=(Metric("alignment", "list", None, descriptive=True),),
        needs=("input", "context"),
        fixed_parts=(fixed,),
        schema=result.schema,
        prompts=prompts,
        read=read,
        score=score,
        heuristic=lambda _trace, _prompt: result.guess(0.0, "No guidance."),
        scoring="alignment/1",
        cuts=("context",),
        output_tokens=lambda _trace, _prompt: _OUTPUT_TOKENS,
    )


_DERIVER: Final = _deriver()
Rules = tuple[str, ...]


class Trial(NamedTuple):
    """Guidance, and the verdicts with it on the traces to learn from."""

    rules: Rules
    judged: Sequence[Judged]

    @property
    def agreement(self) -> float:
        """The agreement with the labels."""
        return balanced(self.judged).value


class Alignment:
    """The search for guidance of one judge. Use it from one event loop."""

    def __init__(
        self,
        make: Callable[[Rules], Judge],
        metric: str | None,
        train: Sequence[Labelled],
        ask: Callable[[Judge, Trace], Awaitable[Assessment]],
        kept: Rules = (),
    ) -> None:
        """Prepare a search for guidance, with which ``make`` makes the judge, besides ``kept``, which it has."""
        self._make = make
        self._metric = metric
        self._train = train
        self._ask = ask
        self.kept = kept
        self.note: str | None = None  # Why the model wrote no guidance when it was asked last.
        self._results: dict[tuple[Rules, int], Judged] = {}

    async def judge(self, judge: Judge, labelled: Sequence[Labelled]) -> Sequence[Judged]:
        """Judge traces; raises ``NotJudgedError`` if the endpoint gave no verdict for a reason that passes."""

        async def judge_one(each: Labelled) -> Judged:
            return Judged(*each, _judged(await self._ask(judge, each.trace)), self._metric)

        return await asyncio.gather(*map(judge_one, labelled))

    async def trial(self, rules: Rules, places: Sequence[int] | None = None) -> Trial:
        """Judge the traces to learn from, or those at some places, with guidance; no trace is judged twice with it."""
        requested = range(len(self._train)) if places is None else places
        missing = [place for place in dict.fromkeys(requested) if (rules, place) not in self._results]
        judged = await self.judge(self._make(rules), [self._train[place] for place in missing])
        self._results.update({(rules, place): result for place, result in zip(missing, judged, strict=True)})
        return Trial(rules, [self._results[rules, place] for place in requested])

    async def derive(self, trial: Trial, attempt: int = 0) -> Rules | None:
        """Ask the judge model for better guidance, each ``attempt`` by other cases; None if nothing can be learnt."""
        wrong = [case for case in trial.judged if not is_right(case) and not case.assessment.reason]
        # By turns, so that both kinds are among the first cases, and remain when the last ones are cut.
        kinds = [[case for case in wrong if says_yes(case.label) is kind] for kind in (False, True)]
        paired = [case for pair in zip(*kinds, strict=False) for case in pair]
        rest = [case for kind in kinds for case in kind[len(paired) // 2 :]]
        cases = [*paired, *rest][attempt * _MAX_WRONG :][:_MAX_WRONG]
        if not cases:
            return None
        right = [case for case in trial.judged if is_right(case)][attempt * _MAX_RIGHT :][:_MAX_RIGHT]
        judge = self._make(trial.rules)
        shown = Trace(
            trace_id="alignment",
            service="alignment",
            input=self._make(()).fixed_parts[0],
            output="\n".join(f"- {rule}" for rule in trial.rules) or "none yet",
            context=[_case(judge, case) for case in (*cases, *right)],
        )
        assessment = _judged(await self._ask(_DERIVER, shown))
        rules = assessment.details.get(RESULT)
        if not isinstance(rules, list) or not rules:
            self.note = assessment.note or assessment.reason or "it found no rule that explains the disagreements"
            return None
        self.note = None
        return tuple(rules)

    async def memory(self, rounds: int) -> Trial:
        """Derive guidance from the disagreements that the best guidance so far has left; return the best."""
        best, attempt = await self.trial(self.kept), 0
        for _ in range(rounds):
            rules = await self.derive(best, attempt)
            if rules is None:
                break
            tried = await self.trial(rules)
            if tried.agreement > best.agreement:
                best, attempt = tried, 0
            else:
                attempt += 1
        return best

    async def gepa(self, rounds: int) -> Trial:
        """Search with GEPA, which chooses the guidance to develop and the traces to derive from."""
        first = await self.trial(self.kept)
        adapter = _GepaAdapter(self, asyncio.get_running_loop(), len(self._train))
        # The optimizer blocks, so that it runs in a thread and calls back into this loop.
        candidates = await asyncio.to_thread(adapter.optimize, self.kept, rounds)
        return max([first, *[await self.trial(rules) for rules in candidates]], key=lambda trial: trial.agreement)


class _GepaAdapter:
    """The adapter that GEPA calls: it judges traces, known by their places, and derives guidance, one rule a line."""

    def __init__(self, alignment: Alignment, loop: asyncio.AbstractEventLoop, traces: int) -> None:
        self._alignment = alignment
        self._loop = loop
        self._traces = traces
        self._shown: Trial | None = None

    def optimize(self, kept: Rules, rounds: int) -> Sequence[Rules]:
        """Run the optimizer in this thread; return all guidance that it has judged on all traces."""
        from gepa.api import optimize  # noqa: PLC0415 - an extra

        places = list(range(self._traces))
        # Not all traces: GEPA would derive from the same ones again.
        batch = min(_MAX_WRONG, (self._traces + 1) // 2)
        adapter: Any = self
        result: Any = optimize(
            seed_candidate={"guidance": "\n".join(kept)},
            trainset=places,
            valset=places,
            adapter=adapter,
            reflection_minibatch_size=batch,
            # The first trial, then for each round the batch before and after, and all traces.
            max_metric_calls=self._traces + rounds * (2 * batch + self._traces),
            logger=_Silent(),
            raise_on_exception=True,
        )
        return [_rules_of(candidate["guidance"]) for candidate in result.candidates]

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> Any:  # noqa: FBT001, FBT002 - GEPA's signature
        """Judge the traces at some places."""
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415 - an extra

        trial = self._wait(self._alignment.trial(_rules_of(candidate["guidance"]), batch))
        judged = list(trial.judged)
        return EvaluationBatch(judged, [float(is_right(case)) for case in judged], judged if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Keep the trial to derive from; GEPA only hands it on."""
        self._shown = Trial(_rules_of(candidate["guidance"]), eval_batch.trajectories)
        return {name: [{"cases": len(self._shown.judged)}] for name in components_to_update}

    def propose_new_texts(self, candidate: dict[str, str], _dataset: object, _components: list[str]) -> dict[str, str]:
        """Derive guidance; without any the candidate stays as it is."""
        rules = None if self._shown is None else self._wait(self._alignment.derive(self._shown))
        return candidate if rules is None else {"guidance": "\n".join(rules)}

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Silent:
    """GEPA's logger: the command reports the result itself."""

    def log(self, message: str) -> None:
        """Drop a message."""


def _rules_of(text: str) -> Rules:
    return tuple(filter(None, text.split("\n")))


def _judged(assessment: Assessment) -> Assessment:
    if assessment.reason in PASSING_REASONS:
        raise NotJudgedError(f"{assessment.reason}: {assessment.note}" if assessment.note else assessment.reason)
    return assessment


def _case(judge: Judge, example: Judged) -> str:
    """Describe a case: both verdicts, then what the judge saw."""
    prompts = judge.prompts(prepared(judge, example.trace))
    blocks = dict.fromkeys(block for prompt in prompts for block in prompt.blocks)
    seen = "\n".join(f"[{name}]\n{value}" for name, value in blocks) or f"{example.trace.input}\n{example.trace.output}"
    if len(seen) > _MAX_CASE_CHARS:
        half = _MAX_CASE_CHARS // 2
        seen = f"{seen[:half]}\n[{len(seen) - 2 * half:,} characters left out]\n{seen[-half:]}"
    score = example.score
    decision = "none" if score is None else "pass" if score.passed else "fail"
    label = f" ({score.label})" if score is not None and score.label else ""
    people = "pass" if says_yes(example.label) else "fail"
    agree = "They agree." if is_right(example) else "They differ."
    lines = (f"Verdict of the people: {people}", f"Verdict of the judge: {decision}{label}", agree)
    reasons = f"Reasons of the judge: {example.assessment.rationale or 'none'}"
    return "\n".join((*lines, reasons, "What the judge saw:", seen))
