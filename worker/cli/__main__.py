"""`python -m worker.cli` is the command `tracejudge`."""

from worker.cli import main

main()
