"""`tracejudge init`: write a commented `tracejudge.toml` from questions or options, and check it."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from judges.custom.definition import nearest
from judges.models.registry import PROVIDERS, known_model, known_models
from judges.registry import catalogue
from worker.cli.lint import LintFinding, lint
from worker.cli.options import note
from worker.config.reading import CONFIG_NAME

_ADDRESSES: Final = {"openai": "https://api.openai.com/v1"}
_USUAL: Final = {one["provider"]: name for name, one in known_models().items() if "usual" in one}


def _priced(price: Mapping[str, float]) -> str:
    """Write a price."""
    return f"price = {{ {', '.join(f'{key} = {usd}' for key, usd in price.items())} }}   # USD per million tokens"


_PRICE: Final = _priced(known_models()[_USUAL["openai"]]["price"])
_FIRST_JUDGES: Final = "groundedness,relevance_to_query,safety"
_TEMPLATE: Final = """\
# Configuration of TraceJudge. Lines that begin with `#` and a key show defaults or examples.
# All keys: docs/reference/configuration.md. Check it with: tracejudge lint

redis_url = {redis_url}
# prefix = "tracejudge"                 # the first part of every key in Redis
# metrics_port = 9808                   # the metrics page; see also metrics_host = "0.0.0.0"
# otlp_endpoint = "http://collector:4318"   # where spans of verdicts are sent
# retention = "24h"                     # how long a trace can be judged again
# log_verdicts = "failed"               # "all" unless set, or "none"

# Personal data and keys in texts are replaced before a judge model sees them.
# [redact]
# builtin = true

# The model that judges.
[models.default]
{model}

# Which traces are judged, by which judges; `tracejudge judges` lists them.
[[rules]]
name = {rule}
{where}judges = {judges}
rate = {rate}                              # the share of matching traces, 0 to 1
# always = ["error", "negative_feedback"]   # judged whatever the rate
# repeat = 0.05                         # judge a share a second time, to measure the judge's own error
{budget}
# What the monitor watches for drops: series are kept once more for each value of these.
# [monitor]
# segments = ["model", "release"]
"""
_HEURISTIC: Final = f"""\
provider = "lexical"                    # a built-in heuristic without a language model: to try things out
# provider = "openai"                   # any OpenAI-compatible endpoint
# base_url = "https://api.openai.com/v1"
# model = "{_USUAL["openai"]}"
# api_key_env = "OPENAI_API_KEY"        # the name of the variable, never the key
# {_PRICE}"""
_BUDGETED: Final = """
# Rates are reduced before the money runs out; the price of the model makes it count.
[budgets.all]
usd_per_day = {usd}
"""
_NO_BUDGET: Final = """
# [budgets.all]
# usd_per_day = 20.0
"""


@click.command("init")
@click.option("--redis-url", metavar="URL", help="Address of Redis.")
@click.option("--provider", metavar="NAME", help="Who judges: openai, anthropic, or lexical, a built-in heuristic.")
@click.option("--base-url", metavar="URL", help="Address of the endpoint, as https://api.openai.com/v1.")
@click.option("--model", metavar="NAME", help="The model, as the endpoint names it.")
@click.option("--api-key-env", metavar="VARIABLE", help="Name of the variable that holds the key, never the key.")
@click.option("--service", metavar="PATTERN", help="The services whose traces are judged, as 'support-*'; else all.")
@click.option("--judges", metavar="LIST", help="Names of judges, separated by commas.")
@click.option("--rate", metavar="SHARE", help="Share of matching traces that is judged, 0 to 1.")
@click.option("--price", metavar="INPUT,OUTPUT", help="USD per million tokens, as 0.10,0.50.")
@click.option("--usd-per-day", type=float, metavar="USD", help="What judging may cost in a day; needs --price.")
@click.option("--output", default=CONFIG_NAME, show_default=True, metavar="FILE", help="File or folder to write to.")
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@click.option("--print", "prints", is_flag=True, help="Print it, and write nothing.")
def command(*, output: str, force: bool, prints: bool, usd_per_day: float | None, **given: str | None) -> None:
    """Write a commented configuration, and check it.

    On a terminal what no option says is asked for; without one the defaults hold. An existing file is never replaced
    without --force.

    \b
    Examples:
      tracejudge init
      tracejudge init --provider openai --model gpt-6-luna --service 'support-*' --rate 0.05
      tracejudge init --provider lexical --print
    """  # noqa: D301 - click's mark for lines that stay as they are
    path = Path(output)
    if path.is_dir():
        path /= CONFIG_NAME
    if path.exists() and not (force or prints):
        raise click.UsageError(f"{path} exists; --force replaces it, --print writes nothing, --output names another")
    asks = sys.stdin.isatty() and sys.stdout.isatty()

    def answer(name: str, question: str, default: str) -> str:
        said = given[name]
        if said is None:
            said = click.prompt(question, default, type=str) if asks else default
        return said.strip()

    values = {"redis_url": _quoted(answer("redis_url", "Address of Redis", "redis://localhost:6379/0"))}
    values["model"] = _model(answer, given)
    service = answer("service", "Services to judge, as support-*; all", "*")
    values["where"] = "" if service == "*" else f"where = {{ service = {_quoted(service)} }}\n"
    values["rule"] = _quoted("all traces" if service == "*" else service)
    judges = [one.strip() for one in answer("judges", "Judges", _FIRST_JUDGES).split(",") if one.strip()]
    for judge in judges:
        if judge not in catalogue():
            raise click.UsageError(f"--judges: there is no judge {judge!r}{nearest(judge, catalogue())}")
    values["judges"] = f"[{', '.join(map(_quoted, judges))}]"
    values["rate"] = answer("rate", "Share of traces to judge, 0 to 1", "1.0")
    _numbers("--rate", values["rate"], 1, "must be a number from 0 to 1; write 5 % as 0.05")
    values["budget"] = _NO_BUDGET if usd_per_day is None else _BUDGETED.format(usd=float(usd_per_day))
    text = _TEMPLATE.format(**values)
    found = _checked(text, path.name)
    if prints:
        sys.stdout.write(text)
    else:
        _write(path, text, replaces=force, is_private="@" in values["redis_url"] or "password=" in values["redis_url"])
        note(f"wrote {path}; next: tracejudge doctor, then tracejudge worker")
    for finding in found:
        note(f"{finding.name}: {finding.what}; {finding.fix}")


def _write(path: Path, text: str, *, replaces: bool, is_private: bool) -> None:
    """Write the file; one with a login is for its owner only."""
    try:
        if is_private:
            note("redis_url holds a login: the file is readable by you only; TRACEJUDGE_REDIS_URL can hold it too")
            if path.is_file():
                path.chmod(0o600)  # of a file that exists the mode stays
        mode = 0o600 if is_private else 0o666
        # Not over a file that another program made meanwhile.
        with open(path, "w" if replaces else "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
    except OSError as error:
        raise click.UsageError(f"--output: {path}: {error.strerror}") from error


def _model(answer: Callable[[str, str, str], str], given: Mapping[str, str | None]) -> str:
    """Write the lines of the model that judges."""
    names_one = given["model"] or given["base_url"]
    provider = answer("provider", "Who judges (openai, anthropic, lexical)", "openai" if names_one else "lexical")
    if provider not in PROVIDERS:
        raise click.UsageError(f"--provider: there is no provider {provider!r}{nearest(provider, PROVIDERS)}")
    if provider == "lexical":
        return _HEURISTIC
    lines = {
        "provider": provider,
        "base_url": answer("base_url", "Address of the endpoint", _ADDRESSES.get(provider, "")),
        "model": answer("model", "Model", _USUAL.get(provider, "")),
        "api_key_env": answer("api_key_env", "Variable with its key", f"{provider.upper()}_API_KEY"),
    }
    told = (f"{key} = {_quoted(value)}" for key, value in lines.items() if value)
    known = known_model(lines["model"])
    price = _priced(known["price"]) if "price" in known else f"# {_PRICE}"
    if given["price"] is not None:
        read, written = _numbers("--price", given["price"], 2, "write two numbers, as 0.10,0.50")
        price = _priced({"input": read, "output": written})
    return "\n".join((*told, price, "# max_in_flight = 256"))


def _quoted(text: str) -> str:
    """Write a string of TOML."""
    return json.dumps(text, ensure_ascii=False)


def _numbers(option: str, text: str, count: int, fix: str) -> list[float]:
    """Read the numbers of an option, which is a mistake with any other count."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count:
        raise click.UsageError(f"{option}: {fix}")
    return found


def _checked(text: str, name: str) -> list[LintFinding]:
    """Lint the text by itself, without variables that would win over it or are wrong themselves; return the warnings.

    Raises:
        UsageError: A worker would not start with it.
    """
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("TRACEJUDGE_", "SSL_CERT_FILE"))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        found = lint(ours, str(file))
    errors = [f"{finding.key}: {finding.what}; {finding.fix}" for finding in found if finding.severity == "error"]
    if errors:
        raise click.UsageError(" | ".join(errors))
    return found
