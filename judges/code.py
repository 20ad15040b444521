"""The import path that judges in Python use: `from judges.code import judge`."""

from judges.features.python import CodeError, CodeJudge, Metric, Result, Score, judge, texts_of, turns

__all__ = ["CodeError", "CodeJudge", "Metric", "Result", "Score", "judge", "texts_of", "turns"]
