"""The network between services, a worker and Redis fails in different ways."""

import time
from collections.abc import Iterator, Sequence

import pytest
from experiment import SCALE, Experiment, number, seconds
from support.proxy import HOLDS, REFUSES, Behaviour, Proxy, cuts_replies, delays, resets_after

TRACES = number(5_000, least=250)
FAULTS = {
    "nobody listens": REFUSES,
    "nothing goes through": HOLDS,
    "all is late": delays(0.3),
    "requests are reset half-way": resets_after(1500),
    "half of each reply": cuts_replies(0.5),
    "delivered, and not answered": cuts_replies(0.0),
    "one reply in five is lost": cuts_replies(0.0, chance=0.2),
}
TOGETHER = {"one after the other": list(FAULTS.values())}
EACH = TOGETHER if SCALE < 1 else TOGETHER | {name: [fault] for name, fault in FAULTS.items()}
FAULT_S = seconds(20, least=1.5)
PAUSE_S = seconds(5, least=0.3)


@pytest.fixture
def proxy(experiment: Experiment) -> Iterator[Proxy]:
    with Proxy(experiment.redis.port) as proxy:
        yield proxy


@pytest.mark.slow("seven faults one after the other")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", EACH.values(), ids=EACH.keys())
def test_the_network_between_redis_and_its_clients_fails(
    experiment: Experiment, proxy: Proxy, faults: Sequence[Behaviour]
) -> None:
    """The fault affects services, a worker and its broker; another worker is not affected."""
    url = f"redis://127.0.0.1:{proxy.port}/0"
    experiment.start("cut off", redis_url=url)
    experiment.start("well")
    with experiment.load(TRACES / (len(faults) * (FAULT_S + PAUSE_S)), TRACES, redis_url=url):
        for fault in faults:
            time.sleep(PAUSE_S)
            with proxy.network(fault):
                time.sleep(FAULT_S)
    experiment.assert_all_scored()
