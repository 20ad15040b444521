"""The judges: what is asked of a trace, how the answer is read, and what score follows.

Nothing here knows Redis or Celery. Imports run one way: ``tracejudge`` <- ``judges`` <- ``worker``.
"""
