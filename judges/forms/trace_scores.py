"""The TRACe metrics: relevance, utilization, completeness and adherence of an answer from documents.

Source: R. Friel, M. Belyi, A. Sanyal, "RAGBench: Explainable Benchmark for Retrieval-Augmented Generation
Systems", 2024, arXiv:2407.11005. With T the sentences of all documents shown, R the relevant and U the
utilized ones among them:

    relevance = |R| / T    utilization = |U| / T    completeness = |R and U| / |R|, 1 when R is empty

Each sentence counts once, however often it was named; the published data set counts repeats. The paper weighs
sentences by their tokens: ``weights`` with words comes close to it and is not equal.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from judges.judge import Metric
from judges.verdict import Score

__all__ = ["METRICS", "Shares", "scores", "shares", "weights"]

METRICS: Final = (
    Metric("relevance", "0..1", None, descriptive=True),
    Metric("utilization", "0..1", None, descriptive=True),
    Metric("completeness", "0..1", None),
    Metric("adherence", "0 or 1", "supported"),
)

# Scripts that put no blanks between words: one character each is nearer to a token than the whole sentence.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Shares(NamedTuple):
    """The three metrics that are shares of document sentences, each 0..1."""

    relevance: float
    utilization: float
    completeness: float


def weights(sentences: Mapping[str, str], *, lengths: bool) -> Mapping[str, int]:
    """Say what each sentence counts.

    Args:
        sentences: Key to sentence.
        lengths: Whether a sentence counts its words; else it counts one. A word is what stands between blanks,
            and each character of a script that puts none between words (Han, kana, Thai, Lao, Khmer, Burmese).
    """
    if lengths:
        return {key: _length(sentence) for key, sentence in sentences.items()}
    return dict.fromkeys(sentences, 1)


def shares(weight_of: Mapping[str, int], relevant: Collection[str], utilized: Collection[str]) -> Shares:
    """Compute relevance, utilization and completeness.

    Args:
        weight_of: What each shown sentence counts, by key.
        relevant: Keys of the relevant sentences, all of them in ``weight_of``.
        utilized: Keys of the utilized sentences, all of them in ``weight_of``.
    """
    known, used = set(relevant), set(utilized)
    total = sum(weight_of.values()) or 1
    useful = sum(weight_of[key] for key in known)
    return Shares(
        relevance=useful / total,
        utilization=sum(weight_of[key] for key in used) / total,
        completeness=sum(weight_of[key] for key in known & used) / useful if useful else 1.0,
    )


def scores(found: Shares, relevance_explanation: str, *, supported: bool) -> tuple[Score, ...]:
    """Give the four metrics in their order; only adherence passes or fails."""
    label = "supported" if supported else "unsupported"
    return (
        Score("relevance", found.relevance, found.relevance, rationale=relevance_explanation),
        Score("utilization", found.utilization, found.utilization),
        Score("completeness", found.completeness, found.completeness),
        Score("adherence", float(supported), float(supported), label, supported),
    )


def _length(sentence: str) -> int:
    return len(sentence.split()) if sentence.isascii() else len(_WORD.findall(sentence))
