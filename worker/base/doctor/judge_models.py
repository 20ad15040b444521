"""What may bias a judge model: a family in common with the judged model."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from worker.base.doctor.finding import Finding, ok, warning
from worker.base.scans import scan_shards
from worker.core.config.settings import Settings
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Store

_FAMILIES: Final = "model families"
_NEWEST: Final = 500
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


def same_family(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check in the newest verdicts whether a model judges answers of its own family, which judges tend to prefer."""
    names = {model.judge_model: model.model or model.judge_model for model in settings.models.values()}
    chunks = scan_shards(store, store.keys.verdicts, newest_first=True, most=_NEWEST)
    entries = islice((entry for chunk in chunks for entry in chunk), _NEWEST)
    read = [one.verdict for entry in entries if (one := read_outbox_entry(entry)) is not None]
    pairs = Counter((verdict.judge_model, verdict.model) for verdict in read if verdict.model)
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
