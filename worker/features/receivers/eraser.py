"""Erases lines of the archives on this machine."""

from pathlib import Path

from worker.base.delivery.settings import RECEIVERS
from worker.base.forget.forget import Eraser, owner_of
from worker.features.receivers.files import erase_lines
from worker.features.receivers.settings import FileSettings


class ArchiveEraser(Eraser):
    """Erases lines of the files that receivers of the kind `file` write."""

    def erase_last(self) -> None:
        """Erase the lines of the target, which count as ``archived``, once for all servers.

        Raises:
            OSError: A file cannot be read or replaced.
        """
        run = self.run
        for options in RECEIVERS.of(run.settings).values() if run.store is run.store.first else ():
            if isinstance(options, FileSettings):
                run.result.archived += erase_lines(
                    Path(options.path), lambda line: run.target.owns(owner_of(line)), dry_run=run.dry_run
                )
