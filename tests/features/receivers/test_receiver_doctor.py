"""`tracejudge doctor` on receivers."""

from pathlib import Path

import pytest
from support.cli_parts import Run
from support.doctor_parts import at, be_present, examined, tuned

from worker.base.delivery.feature import DeliveryKeys


@pytest.mark.usefixtures("_patient_doctor")
def test_verdicts_that_are_parked_for_a_receiver(run: Run) -> None:
    Path("tracejudge.toml").write_text('[receivers.phoenix]\nkind = "phoenix"\nurl = "http://127.0.0.1:1"\n')
    with tuned() as server:
        be_present(server.url)
        assert "parked for phoenix" not in examined(run, url=server.url)[1]
        store = at(server.url)
        entries, due = DeliveryKeys(store.keys.prefix).receiver_parked("phoenix")
        store.call(lambda client: (client.hset(entries, "1-0", b"x"), client.zadd(due, {"1-0": 1})))
        store.close()
        part = examined(run, url=server.url)[1]["parked for phoenix"]
    assert part[:2] == ("warning", "1 verdict parked: it does not know their traces or spans yet")
