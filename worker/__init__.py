"""The application: reads published traces, samples them, has them judged, and exports the verdicts."""

from tracejudge_worker import other_package

if (_wrong := other_package()) is not None:  # found by `celery -A worker` in a folder with packages of our names
    raise ImportError(_wrong)
