"""The states of an evaluation: where each is kept, which script moves an evaluation there, and what a crash leaves.

A table for readers; docs/spine.md prints it. A test compares its scripts and keys with those that exist. Every script
can be repeated: what took effect once does not take effect twice.
"""

from typing import Final, NamedTuple


class State(NamedTuple):
    """One state.

    Attributes:
        name: What the documentation calls it.
        keys: Names of ``Keys`` that hold it; empty if only memory or the account does.
        scripts: The scripts that move an evaluation here.
        crash: What happens if the process ends at this point.
    """

    name: str
    keys: tuple[str, ...]
    scripts: tuple[str, ...]
    crash: str


STATES: Final = (
    State("published", ("traces",), (), "the entry stays pending in the group; another worker claims it after 10 s"),
    State("ended at ingest", ("account_all",), ("choose",), "before the script the entry is read again"),
    State("ready", ("batch", "ready", "leases"), ("choose",), "nothing; the sweeper sends a lost notification again"),
    State("leased", ("leases", "holders"), ("take", "renew"), "the lease ends within 15 s; the batch is ready again"),
    State("called", (), (), "as leased; the call in flight is paid, and its answer is lost"),
    State("answered, not written", (), (), "as leased; judged and paid again under the same id; it counts once"),
    State("final", ("evaluations", "verdicts"), ("record",), "the batch is leased again without this evaluation"),
    State("batch finished", (), ("finish",), "before the script as above; a second call changes nothing"),
    State("parked", ("holders", "tries"), ("put_back",), "before the script the calls of this round are not counted"),
    State("set aside", ("holders",), ("set_aside",), "a batch that cannot be read is set aside again"),
    State("dead", ("dead", "dead_due"), ("dead_add",), "the batch is swept, and its dead evaluations are left out"),
    State("dead, retried", ("dead_retries",), ("dead_retry",), "a mark whose batch does not exist prevents nothing"),
    State("removed", ("account_all",), ("dead_remove", "forget_batch"), "a verdict that comes later is not written"),
    State("exported", ("verdicts",), ("acknowledge",), "an entry stays pending in the group of each exporter"),
)
