"""How a classifier of pairs is fed and read: `judge.toml`, chunks of long evidence, and the aggregation.

A classifier reads a bounded number of tokens. Long evidence is divided into chunks that fit beside the claim, and the
claim is supported as far as its best chunk supports it. A claim of several sentences, if `judge.toml` divides it, is
supported as far as its least supported sentence.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from judges.core.decision import Decision, Question, read_probabilities
from judges.core.model import BadModelRequestError, InputTooLongError
from judges.models.provider import ModelSettingsError
from judges.parsing.sentences import split

DESCRIPTION: Final = "judge.toml"
_EVIDENCE: Final = "{evidence}"
_CLAIM: Final = "{claim}"
_MARKS: Final = re.compile(r"\{evidence\}|\{claim\}")
_MIN_EVIDENCE_TOKENS: Final = 16
_MIN_TOKENS: Final = 32
_MAX_INPUTS: Final = 2048  # About a minute of a small model; a longer request would only run into its time limit.

Spans = Callable[[str], Sequence[tuple[int, int]]]  # Returns the tokens of a text as spans of its characters.


class Description(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `judge.toml` of a classifier.

    Attributes:
        task: `nli` and `pair` have one result for each input, `token` one for each of its tokens.
        labels: The model's labels, in the order of its outputs. One label is read by the logistic function.
        max_tokens: Maximum number of tokens of one input.
        support: The label of a supported claim, or of a supported token. By default `entailment` for `nli`.
        overlap: Tokens that a chunk of evidence repeats from the one before.
        sentences: Whether a claim is divided into its sentences.
        text: The first text of an input. With `{claim}` in it, the input is this text alone.
        text_pair: The second text of an input.
    """

    task: Literal["nli", "pair", "token"]
    labels: tuple[str, ...]
    max_tokens: int
    support: str = ""
    overlap: int = 32
    sentences: bool = False
    text: str = _EVIDENCE
    text_pair: str = _CLAIM

    @property
    def is_pair(self) -> bool:
        """Whether an input has two texts."""
        return _CLAIM not in self.text

    @property
    def support_label(self) -> str:
        """The label of support."""
        return self.support or ("entailment" if self.task == "nli" else "")

    @property
    def supported(self) -> int:
        """The index of the label of support."""
        return self.labels.index(self.support_label)


def load_description(path: str) -> Description:
    """Read and check the `judge.toml` of a folder, or raise ``ModelSettingsError``."""
    folder = Path(path)
    file = folder / DESCRIPTION
    if not folder.is_dir():
        raise ModelSettingsError(f"path: {folder} is not a folder; name the folder that holds {DESCRIPTION}")
    try:
        loaded = msgspec.toml.decode(file.read_bytes(), type=Description)
    except FileNotFoundError:
        raise ModelSettingsError(
            f"path: {folder} has no {DESCRIPTION}; write it as docs/several-models.md says: task, labels and max_tokens"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelSettingsError(f"path: {file}: {error}") from None
    marks = f"{loaded.text} {loaded.text_pair if loaded.is_pair else ''}"
    wrong = {
        "labels: must name each output of the model once, in the order of id2label in its config.json": (
            not loaded.labels or len(set(loaded.labels)) < len(loaded.labels)
        ),
        f"support: must be one of the labels, {', '.join(loaded.labels)}": loaded.support_label not in loaded.labels,
        f"text: must contain {_EVIDENCE}, and text or text_pair {_CLAIM}": (
            _EVIDENCE not in loaded.text or _CLAIM not in marks
        ),
        f'text_pair: must be "{_CLAIM}" for the task token, and text must not contain it': (
            loaded.task == "token" and not (loaded.is_pair and loaded.text_pair == _CLAIM)
        ),
        f"max_tokens: must be at least {_MIN_TOKENS}": loaded.max_tokens < _MIN_TOKENS,
        "overlap: must be from 0 to half of max_tokens": not 0 <= loaded.overlap <= loaded.max_tokens // 2,
    }
    for problem, is_wrong in wrong.items():
        if is_wrong:
            raise ModelSettingsError(f"path: {file}: {problem}")
    return loaded


class Input(NamedTuple):
    """One input of a classifier: a text, or two."""

    text: str
    pair: str | None


class Layout(NamedTuple):
    """The inputs for some questions, and their places: for each question, for each sentence, for each chunk."""

    inputs: list[Input]
    places: list[list[range]]

    def decide(self, questions: Sequence[Question], values: Sequence[object]) -> tuple[Decision, ...]:
        """Aggregate the value of each input: the most of the chunks, the least of the sentences."""
        return tuple(
            _decide(question, [[values[place] for place in places] for places in sentences])
            for question, sentences in zip(questions, self.places, strict=True)
        )


def _decide(question: Question, values: Sequence[Sequence[object]]) -> Decision:
    best = []
    for chunks in values:
        read = [read_probabilities(question, [value]) for value in chunks]
        # The unusable chunk may be the one that supports the claim.
        problem = next((decision for decision in read if decision.problem is not None), None)
        if problem is not None:
            return problem
        best.append(max(decision.probability for decision in read))
    return Decision((min(best),))


def lay_out(
    description: Description,
    questions: Sequence[Question],
    spans: Spans,
    clean: Callable[[str], str] = str,
    spare: int = 8,  # Classification and separator tokens, and tokens that change where a chunk is cut.
) -> Layout:
    """Build the inputs for predicates with pairs, cleaned before they are divided.

    ``spans`` are the tokenizer's, or an estimate on the safe side; ``spare`` tokens of an input stay free.
    ``BadModelRequestError`` if a question has no pair; ``InputTooLongError`` if a claim leaves no room for evidence, or
    there are too many inputs.
    """
    inputs: list[Input] = []
    places = []
    texts: dict[str, tuple[str, Sequence[tuple[int, int]]]] = {}
    for question in questions:
        if question.kind != "predicate" or question.pair is None:
            raise _no_pair()
        evidence, claim = question.pair
        if evidence not in texts:  # Judges ask about many claims with the same evidence.
            texts[evidence] = clean(evidence), spans(clean(evidence))
        sentences = (split(claim) if description.sentences else ()) or (claim,)
        sections = []
        for sentence in map(clean, sentences):
            start = len(inputs)
            fixed = _filled(description, "", sentence)
            used = spare + sum(len(spans(text)) for text in fixed if text is not None)
            inputs += _chunked(description, *texts[evidence], sentence, description.max_tokens - used)
            sections.append(range(start, len(inputs)))
        places.append(sections)
        if len(inputs) > _MAX_INPUTS:
            raise InputTooLongError(f"evidence and claims make more than {_MAX_INPUTS} inputs of the classifier")
    if not inputs:
        raise _no_pair()
    return Layout(inputs, places)


def _no_pair() -> BadModelRequestError:
    error = BadModelRequestError("a classifier answers only whether evidence supports a claim, which was not asked")
    error.was_asked = False
    return error


def _chunked(
    description: Description, evidence: str, tokens: Sequence[tuple[int, int]], claim: str, room: int
) -> list[Input]:
    """Divide evidence into chunks of at most ``room`` tokens, each in an input with the claim."""
    if room < min(_MIN_EVIDENCE_TOKENS, len(tokens)):
        limit = description.max_tokens
        raise InputTooLongError(f"a claim leaves no room for evidence in the {limit} tokens of the classifier")
    if len(tokens) <= room:
        return [_filled(description, evidence, claim)]
    overlap = min(description.overlap, room // 2)
    inputs: list[Input] = []
    first = 0
    while True:
        last = first + room
        if last >= len(tokens):
            return [*inputs, _filled(description, evidence[tokens[first][0] :], claim)]
        # Before the token, or with its first character, a word ends.
        ends = (
            place
            for place in range(last, first + room * 3 // 4, -1)
            if any(map(str.isspace, evidence[max(0, tokens[place][0] - 1) : tokens[place][0] + 1]))
        )
        last = next(ends, last)
        inputs.append(_filled(description, evidence[tokens[first][0] : tokens[last][0]], claim))
        first = max(first + 1, last - overlap)


def _filled(description: Description, evidence: str, claim: str) -> Input:
    # In one pass: evidence that contains a mark stays plain text.
    values = {_EVIDENCE: evidence, _CLAIM: claim}
    text, pair = (_MARKS.sub(lambda mark: values[mark[0]], each) for each in (description.text, description.text_pair))
    return Input(text, pair if description.is_pair else None)
