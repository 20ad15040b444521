"""Commands of parts of base that bring nothing else, and the keys in which replays and `forget` keep their progress."""

from typing import Final

from worker.core.features import Command, Feature
from worker.core.storage.keys import KeySpace


class ProgressKeys(KeySpace):
    def forgetting(self, name: str) -> str:
        """String, trace ids of a person or session as JSON, until all of it is erased; TTL of a week."""
        return f"{self.prefix}:forgetting:{name}"

    def replay(self, name: str) -> str:
        """Hash of one replay: question, position, counts; TTL of the ledger since its last step."""
        return f"{self.prefix}:replay:{name}"


_COMMANDS: Final = {
    "account": Command("worker.base.accounting", "Print the accounting: the outcome of every trace and evaluation"),
    "doctor": Command("worker.base.doctor.command", "Check every part, and say how to fix each that is broken"),
    "forget": Command("worker.base.forget.command", "Erase a trace or a person"),
    "help": Command("worker.base.commands.help", "Print a page of the documentation as text"),
    "init": Command("worker.base.doctor.init", "Write a commented configuration, and check it"),
    "judges": Command("worker.base.commands.judges", "List the judges; show a prompt; measure a judge against labels"),
    "lint": Command("worker.base.doctor.lint", "Find all mistakes of a configuration"),
    "publish": Command("worker.base.commands.publish", "Publish traces from a file"),
    "replay": Command("worker.base.replay.command", "Judge again the traces still in the stream"),
    "worker": Command("worker.base.commands.worker", "Run the worker"),
}
FEATURE: Final = Feature(name="commands", keys=ProgressKeys, commands=_COMMANDS)
