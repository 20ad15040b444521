"""Labels: people's verdicts, the judges' agreement with them, and shares corrected by them."""

from collections.abc import Iterator
from typing import Final

from judges.core.faults import Fault
from worker.core.config.settings import Settings
from worker.core.features import Command, Feature
from worker.core.storage.keys import Key, KeySpace


class LabelKeys(KeySpace):
    annotators = Key(
        "labels:annotators",
        "Hash of annotator, a keyed hash of a name, to the time of the last answer in seconds. No TTL.",
    )

    def label_lock(self, label: str) -> str:
        """String, the annotator who is asked for a label; TTL of ten minutes."""
        return f"{self.prefix}:labels:lock:{label}"


def find_stale(settings: Settings) -> Iterator[Fault]:
    """Find calibrations that were fitted for another version of their judge."""
    from judges.models.registry import decides, judge_for
    from judges.registry import load_judges

    judges = load_judges(settings.judges) if settings.calibrations else {}
    models = {model.judge_model: model for model in settings.models.values() if decides(model)}
    for row in settings.calibrations:
        present = judge_for(judges[row.judge], models[row.model]).version
        if (fitted := row.judge_version or present) != present:
            what = f"{row.judge} by {row.model} was calibrated in version {fitted[:8]}, and is {present[:8]} now"
            fix = f"`tracejudge calibrate --judge {row.judge} --model {row.model}` fits it anew"
            yield Fault("calibrations", what, fix, "stale-calibration")


_COMMANDS: Final = {
    "calibrate": Command("worker.features.labels.calibrate", "Measure a judge against human labels"),
    "labels": Command("worker.features.labels.command", "Import, list and export human labels of traces"),
}
FEATURE: Final = Feature(
    name="labels",
    keys=LabelKeys,
    commands=_COMMANDS,
    watch="worker.features.labels.correction_watch.CorrectionWatch",
    warnings="worker.features.labels.feature.find_stale",
)
