"""`python -m worker.cli` is the command `tracejudge`."""

from tracejudge_worker import main

main()
