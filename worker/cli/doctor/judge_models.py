"""What may bias judge models: a calibration of an earlier version, and a family in common with the judged model."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from judges.models.registry import known_model
from judges.registry import configured
from worker.config.settings import Settings
from worker.queue.ledger import read_outbox_entry
from worker.storage.client import Store, scan_shards
from worker.telemetry.finding import Finding, ok, warning

ENDS: Final = "ends of models"
_CALIBRATIONS: Final = "calibrations"
_FAMILIES: Final = "model families"
_NEWEST: Final = 500
_SHOWN_DIGITS: Final = 8
_NAMES: Final = {
    "Claude": "claude",
    "Command": "command-",
    "DeepSeek": "deepseek",
    "Gemini": "gemini|gemma",
    "GPT": r"gpt|chatgpt|o[134](?![a-z\d])",
    "Grok": "grok",
    "Llama": "llama|meta-llama|codellama",
    "Mistral": "mistral|mixtral|ministral|magistral|codestral|devstral|pixtral",
    "Nova": "nova-",
    "Phi": r"phi-?\d",
    "Qwen": "qwen|qwq",
}
# A name may stand after its vendor, as in `anthropic.claude-…`, or within the name of a panel.
_PATTERNS: Final = {family: re.compile(rf"(?<![a-z\d])(?:{names})", re.IGNORECASE) for family, names in _NAMES.items()}


def families(model: str) -> frozenset[str]:
    """Return the families that the name of a model belongs to: several for a model that is derived from others."""
    return frozenset(family for family, pattern in _PATTERNS.items() if pattern.search(model))


def calibrations(settings: Settings) -> Sequence[Finding]:
    """Check that calibrations were fitted for the present versions of their judges."""
    judges = configured(settings.judges)
    models = {one.judge_model: one for one in settings.models.values() if one.decides}
    findings = []
    for one in settings.calibrations:
        present = judges[one.judge].for_model(models[one.model]).version
        fitted = one.judge_version or present
        if fitted != present:
            versions = f"version {fitted[:_SHOWN_DIGITS]}, and is {present[:_SHOWN_DIGITS]} now"
            what = f"{one.judge} by {one.model} was calibrated in {versions}"
            fix = f"`tracejudge calibrate --judge {one.judge} --model {one.model}` fits it anew"
            findings.append(warning(_CALIBRATIONS, what, fix))
    return findings or [ok(_CALIBRATIONS, f"{len(settings.calibrations)}, all for the present versions")]


def ends(settings: Settings) -> Sequence[Finding]:
    """Check whether a model leaves its maker's API, as far as the table of models knows."""
    findings = []
    for name, model in settings.models.items():
        known = known_model(model.model or "")
        if "end" in known:
            what = f"{model.model} of [models.{name}] leaves its maker's API on {known['end']}"
            findings.append(warning(ENDS, what, f"choose {known.get('instead', 'another model')}"))
    return findings or [ok(ENDS, "no end of a model is known")]


def same_family(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check in the newest verdicts whether a model judges answers of its own family, which judges tend to prefer."""
    names = {one.judge_model: one.model or one.judge_model for one in settings.models.values()}
    chunks = scan_shards(store, store.keys.verdicts, newest_first=True, most=_NEWEST)
    entries = islice((entry for chunk in chunks for entry in chunk), _NEWEST)
    read = [one.verdict for entry in entries if (one := read_outbox_entry(entry)) is not None]
    pairs = Counter((one.judge_model, one.model) for one in read if one.model)
    findings = [
        warning(
            _FAMILIES,
            f"{judge_model} judges answers of {model}: both are of the family {', '.join(sorted(common))} "
            f"({count:,} of the newest {len(read):,} verdicts)",
            "judges tend to prefer answers of their own family: take a judge model of another one, or measure "
            "the error by `tracejudge calibrate`",
        )
        for (judge_model, model), count in sorted(pairs.items())
        if (common := families(names.get(judge_model, judge_model)) & families(model))
    ]
    return findings or [ok(_FAMILIES, "no model judges answers of its own family")]
