"""Judges written in Python: what their authors import, and the processes in which they run."""

from judges.code.api import CodeJudge, Result, Score, judge
from judges.code.errors import CodeError
from judges.judge import Metric
from judges.prompt import texts_of

__all__ = ["CodeError", "CodeJudge", "Metric", "Result", "Score", "judge", "texts_of"]
