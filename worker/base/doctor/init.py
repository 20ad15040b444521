"""`tracejudge init`: write a commented `tracejudge.toml` to be edited."""

import json
import re
import sys
from pathlib import Path
from typing import Final

import click

from judges.models.registry import known_models
from worker.base.commands.options import JSON, note, print_json
from worker.core.config.reading import CONFIG_NAME

_MODEL, _KNOWN = next((name, fields) for name, fields in known_models().items() if "usual" in fields)
_PRICE: Final = ", ".join(f"{key} = {usd}" for key, usd in _KNOWN["price"].items())
_HEURISTIC: Final = """\
# The model that judges where a rule names none: a built-in heuristic without a language model, to try things out.
[models.default]
provider = "lexical\""""
_TEXT: Final = f"""\
# Configuration of TraceJudge. Lines that begin with `#` and a key show defaults or examples.
# All keys: docs/reference/configuration.md. Check it with: tracejudge lint

redis_url = "redis://localhost:6379/0"
# prefix = "tracejudge"                 # the first part of every key in Redis
# metrics_port = 9808                   # the metrics page; see also metrics_host = "0.0.0.0"
# otlp_endpoint = "http://collector:4318"   # where spans of verdicts are sent
# retention = "24h"                     # how long a trace can be judged again
# log_verdicts = "failed"               # "all" unless set, or "none"

# Personal data and keys in texts are replaced before a judge model sees them.
# [redact]
# builtin = true

{{default}}

# A language model at any OpenAI-compatible endpoint. Rules name it; called `default` it replaces the heuristic.
# [models.chat]
# provider = "openai"                   # or "anthropic", without base_url
# base_url = "https://api.openai.com/v1"
# model = "{_MODEL}"
# api_key_env = "OPENAI_API_KEY"        # the name of the variable, never the key
# price = {{ {_PRICE} }}   # USD per million tokens
# max_in_flight = 256

# Which traces are judged, by which judges; `tracejudge judges` lists them.
[[rules]]
name = "all traces"
judges = ["groundedness", "relevance_to_query", "safety"]
# where = {{ service = "support-*" }}     # else every service
rate = 1.0                              # the share of matching traces, 0 to 1
# model = "chat"
# always = ["error", "negative_feedback"]   # judged whatever the rate
# repeat = 0.05                         # judge a share a second time, to measure the judge's own error

# Rates are reduced before the money runs out; the price of the model makes it count.
# [budgets.all]
# usd_per_day = 20.0

# What the monitor watches for drops: series are kept once more for each value of these.
# [monitor]
# segments = ["model", "release"]
"""


def _endpoint(base_url: str, model: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise click.UsageError(f"--base-url: {base_url} is no address; write it as http://localhost:8000/v1")
    lines = ["# The model that judges where a rule names none.", "[models.default]"]
    lines += [f"base_url = {json.dumps(base_url)}", f"model = {json.dumps(model)}"]
    if re.match(r"https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])([:/]|$)", base_url):
        lines += ["# One machine answers few requests at once, and slowly: with more in flight, calls time out."]
        lines += ["max_in_flight = 2", "timeout_s = 300"]
    else:
        lines += ['api_key_env = "OPENAI_API_KEY"        # the name of the variable, never the key']
    return "\n".join(lines)


@click.command("init")
@click.option("--output", default=CONFIG_NAME, show_default=True, metavar="FILE", help="File or folder to write to.")
@click.option("--base-url", metavar="URL", help="The OpenAI-compatible endpoint that judges, with its version path.")
@click.option("--model", metavar="NAME", default=_MODEL, show_default=True, help="With --base-url: its model.")
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.option("--print", "prints", is_flag=True, help="Print it, and write nothing.")
@JSON
def command(*, output: str, base_url: str | None, model: str, force: bool, prints: bool, as_json: bool) -> None:
    """Write a commented configuration to edit.

    With it the model at --base-url judges every trace, else the built-in heuristic. A budget and other keys are there
    as comments. An endpoint of this machine needs no key and gets few calls at once, every other the key in
    OPENAI_API_KEY.
    An existing file is never replaced without --force.
    """
    text = _TEXT.replace("{default}", _HEURISTIC if base_url is None else _endpoint(base_url, model))
    if prints:
        sys.stdout.write(text)
        return
    path = Path(output)
    if path.is_dir():
        path /= CONFIG_NAME
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise click.UsageError(
            f"{path} exists; --force replaces it, --print writes nothing, --output names another"
        ) from error
    except OSError as error:
        raise click.UsageError(f"--output: {path}: {error.strerror}") from error
    if as_json:
        print_json({"file": str(path)})
    note(f"wrote {path}; edit it, then run tracejudge lint, tracejudge doctor, and tracejudge worker")
