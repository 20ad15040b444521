"""Judges written in Python: the names that authors import, and the processes in which they run."""

from judges.core.judge import Metric
from judges.core.prompt import texts_of
from judges.core.sessions import turns
from judges.features.python.api import CodeError, CodeJudge, Result, Score, judge

__all__ = ["CodeError", "CodeJudge", "Metric", "Result", "Score", "judge", "texts_of", "turns"]
