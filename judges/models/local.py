"""A classifier in this process: the folder of an ONNX model with its tokenizer, run by onnxruntime.

Everything here is synchronous and belongs on a thread. onnxruntime releases the interpreter lock while it computes, so
that an event loop goes on. The packages are the extra `local`.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import onnxruntime as ort
from msgspec import Struct
from tokenizers import Encoding, Tokenizer

from judges.core.decision import Decision, Question
from judges.core.model import InputTooLongError, ModelUnavailableError
from judges.models.pairs import DESCRIPTION, Description, lay_out
from judges.models.provider import ModelSettingsError

_MODEL: Final = "model.onnx"
_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "config.json"
_BATCH_TOKENS: Final = 16_384  # Padding included: it bounds the memory of one run.
_TOKENS_AXIS: Final = 3  # Axes of an output with one result for each token.


class _Config(Struct):
    id2label: dict[str, str] = {}


class Answers(NamedTuple):
    """The answers to some questions, and the tokens that were read."""

    decisions: tuple[Decision, ...]
    tokens: int


class LocalClassifier:
    """The model of a folder. Calls must not overlap."""

    def __init__(self, path: str, description: Description) -> None:
        """Load and check the folder; ``ModelSettingsError`` if a file cannot be used or does not match `judge.toml`."""
        folder = Path(path)
        for name in (_MODEL, _TOKENIZER):
            if not (folder / name).is_file():
                raise ModelSettingsError(f"path: {folder} has no {name}; put the exported model there")
        self._description = description
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        except Exception as error:  # noqa: BLE001 - its errors are plain exceptions
            raise ModelSettingsError(f"path: {folder / _TOKENIZER} cannot be read: {error}") from None
        # Files say how they were used in training; here inputs are cut into chunks, and padded for each batch.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._pad = next(filter(None, map(self._tokenizer.token_to_id, ("[PAD]", "<pad>"))), 0)
        options = ort.SessionOptions()
        # One processor stays free for the event loop.
        options.intra_op_num_threads = max(1, (os.cpu_count() or 1) - 1)
        options.log_severity_level = 3  # Errors.
        try:
            self._session = ort.InferenceSession(
                str(folder / _MODEL), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001 - its errors have no common class
            raise ModelSettingsError(f"path: {folder / _MODEL} cannot be loaded: {error}") from None
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._check(folder)

    def _check(self, folder: Path) -> None:
        """Compare the model with `judge.toml` by one run."""
        labels = self._description.labels
        if unknown := sorted({*self._inputs} - {"input_ids", "attention_mask", "token_type_ids"}):
            fix = "export the model for classification, without a decoder"
            raise ModelSettingsError(f"path: {folder / _MODEL} needs the input {unknown[0]}; {fix}")
        if (folder / _CONFIG).is_file():
            try:
                names = msgspec.json.decode((folder / _CONFIG).read_bytes(), type=_Config).id2label
                ordered = tuple(names[place] for place in sorted(names, key=int))
            except (OSError, ValueError) as error:
                raise ModelSettingsError(f"path: {folder / _CONFIG}: {error}") from None
            if names and ordered != labels:
                fix = f"write them as in {_CONFIG}: {', '.join(ordered)}"
                raise ModelSettingsError(f"path: {folder / DESCRIPTION}: labels: are not the model's; {fix}")
        try:
            logits = self._run([self._tokenizer.encode("a", "b" if self._description.is_pair else None)])
        except ModelUnavailableError as error:
            raise ModelSettingsError(f"path: {folder / _MODEL} fails on a short text: {error.__cause__}") from None
        is_by_token = logits.ndim == _TOKENS_AXIS
        if self._description.task == "token" and not is_by_token:
            raise ModelSettingsError(
                f"path: {folder / DESCRIPTION}: task: the model has no result for each token; set nli or pair"
            )
        if logits.ndim not in {_TOKENS_AXIS - 1, _TOKENS_AXIS} or logits.shape[-1] != len(labels):
            shape = " x ".join(map(str, logits.shape))
            fix = f"name them all, in the order of id2label in the model's {_CONFIG}"
            raise ModelSettingsError(
                f"path: {folder / DESCRIPTION}: labels: are {len(labels)}, but the model's output is {shape}; {fix}"
            )

    def answer(self, questions: Sequence[Question], is_cancelled: Callable[[], bool]) -> Answers:
        """Answer questions in batches of similar length, none after the cancellation, or raise ``ModelError``."""
        for spare in (8, 64):  # Tokens that stay free; more if tokens grow because evidence was cut between them.
            layout = lay_out(
                self._description,
                questions,
                lambda text: self._tokenizer.encode(text, add_special_tokens=False).offsets,
                self._plain,
                spare,
            )
            encodings = self._tokenizer.encode_batch(
                [each.text if each.pair is None else (each.text, each.pair) for each in layout.inputs]
            )
            if max(map(len, encodings)) <= self._description.max_tokens:
                break
        else:
            raise InputTooLongError("evidence and claim cannot be divided into chunks that fit the classifier")
        values = [0.0] * len(encodings)
        by_length = sorted(range(len(encodings)), key=lambda place: len(encodings[place]))
        while by_length:
            if is_cancelled():
                raise ModelUnavailableError("the request was cancelled")
            size = max(1, min(32, _BATCH_TOKENS // len(encodings[by_length[-1]])))
            batch, by_length = by_length[-size:], by_length[:-size]
            chosen = [encodings[place] for place in batch]
            for place, encoding, logits in zip(batch, chosen, self._run(chosen), strict=True):
                values[place] = self._support(encoding, logits)
        return Answers(layout.decide(questions, values), sum(map(len, encodings)))

    def _plain(self, text: str) -> str:
        """Divide special tokens that are written in the material: only templates may contain them."""
        return text if self._special is None else self._special.sub(lambda match: " ".join(match[0]), text)

    def _run(self, encodings: Sequence[Encoding]) -> Any:
        """Return the logits of some inputs: one row for each, or one for each of its tokens."""
        longest = max(map(len, encodings))
        fed = {name: np.zeros((len(encodings), longest), np.int64) for name in self._inputs}
        if "input_ids" in fed:
            fed["input_ids"].fill(self._pad)
        for row, encoding in enumerate(encodings):
            columns = {
                "input_ids": encoding.ids,
                "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids,
            }
            for name, values in fed.items():
                values[row, : len(encoding)] = columns[name]
        try:
            return np.asarray(self._session.run(None, fed)[0], np.float64)
        except Exception as error:
            # The text of the error is not shown: it may quote what was fed.
            raise ModelUnavailableError(f"the model cannot be run: {type(error).__name__}") from error

    def _support(self, encoding: Encoding, logits: Any) -> float:
        if self._description.task != "token":
            # A model with results for tokens, such as HHEM, classifies by the first.
            return float(self._probabilities(logits[0] if logits.ndim > 1 else logits))
        claim = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
        return float(self._probabilities(logits[claim]).min()) if claim else float("nan")

    def _probabilities(self, logits: Any) -> Any:
        # Logits that are not finite make a probability that is not, which is no answer.
        with np.errstate(all="ignore"):
            if len(self._description.labels) == 1:
                return 1 / (1 + np.exp(-logits[..., 0]))
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            return powers[..., self._description.supported] / powers.sum(axis=-1)
