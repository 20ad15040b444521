"""The application: reads published traces, samples them, has them judged, and exports the verdicts."""

import sys

from tracejudge_worker import end_at_signals, other_package

if (_wrong := other_package()) is not None:  # found by `celery -A worker` in a folder with packages of our names
    raise ImportError(_wrong)
if sys.argv[0].endswith(("celery", "celery/__main__.py")) and "worker" in sys.argv[3:]:  # celery -A worker worker
    end_at_signals()
