"""Labels where traces are spread over several partitions."""

from support.cli_parts import Run, write_lines
from support.published import TRACES
from support.stage_parts import Keyspace

from worker.base.lookup.feature import LookupKeys


def test_labels_are_kept_on_the_first_server_with_verdicts_and_traces_of_all(
    published: list[Keyspace], run: Run
) -> None:
    labels = [{"trace_id": trace["trace_id"], "judge": "safety", "label": "pass", "drawn": 1} for trace in TRACES]
    assert run("labels", "import", write_lines("labels.jsonl", labels)).code == 0
    keys = LookupKeys(published[0].keys.prefix)
    assert published[0].client.hlen(keys.labels) == 2 * len(TRACES), "each label with its verdict"
    assert published[0].client.hlen(keys.labelled) == len(TRACES), "each with a copy of its trace"
