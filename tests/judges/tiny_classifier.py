"""Folders of classifiers as users bring them, with a model of a few words that is computed exactly.

Each word adds its row of ``WORDS`` to the logits, so that a test knows the answer. The other words add nothing.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PLAIN = tuple(f"w{number}" for number in range(20))
WORDS: Mapping[str, float] = {"confirmed": 4.0, "wrong": -8.0, "broken": math.nan, "[CLS]": -2.0}
PAIR = 'task = "pair"\nlabels = ["no", "yes"]\nsupport = "yes"\nmax_tokens = 64\n'


def tokenizer() -> Tokenizer:
    words = [*SPECIAL, *(word for word in WORDS if word not in SPECIAL), *PLAIN]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, SPECIAL[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(SPECIAL))
    places = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=places
    )
    # As files of trained models say; a classifier that obeyed would judge the beginning of its evidence alone.
    made.enable_truncation(16)
    made.enable_padding(length=16)
    return made


def model(labels: int, supported: int, *, by_token: bool = False, inputs: Sequence[str] = ()) -> onnx.ModelProto:
    expected = tokenizer()
    table = np.zeros((expected.get_vocab_size(), labels), np.float32)
    for word, weight in WORDS.items():
        table[expected.token_to_id(word), supported] = 0.0 if by_token and word == "[CLS]" else weight
    size: list[Any] = ["batch", "tokens"]
    names = inputs or ("input_ids", "attention_mask")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        # Padding would add a large number, were it not masked.
        helper.make_node("Mul", ["rows", "column"], ["masked"]),
        helper.make_node("Identity", ["masked"], ["logits"])
        if by_token
        else helper.make_node("ReduceSum", ["masked", "axis"], ["logits"], keepdims=0),
    ]
    table[expected.token_to_id("[PAD]")] = 100.0
    constants = {"table": table, "last": np.array([2]), "axis": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, size) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_folder(folder: Path, description: str = PAIR, made: onnx.ModelProto | None = None, **others: str) -> Path:
    """Write a folder that is whole; ``others`` are further files by their names without `.json`."""
    folder.mkdir(exist_ok=True)
    (folder / "judge.toml").write_text(description)
    (folder / "model.onnx").write_bytes((made or model(2, 1)).SerializeToString())
    tokenizer().save(str(folder / "tokenizer.json"))
    for name, text in others.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))
