"""OpenAI's client under Logfire."""

import logfire
from harness import provider, run
from openai_scenarios import SCENARIOS, client

logfire.configure(send_to_logfire=False, console=False, metrics=False, service_name="shop")
logfire.instrument_openai(client)
run(SCENARIOS, lambda: (provider.force_flush(), logfire.force_flush()))
