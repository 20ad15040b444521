"""What of a trace may travel: without its texts where that is said, then redacted, then cut."""

from tracejudge.model import LateFeedback, Trace
from tracejudge.settings import Settings


class Content:
    """Prepares records under one configuration, in the background thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self, record: Trace | LateFeedback) -> Trace | LateFeedback:
        """Give what may travel of a record.

        Raises:
            RedactionError: The host's own redaction failed; the record must not travel.
        """
        return record
