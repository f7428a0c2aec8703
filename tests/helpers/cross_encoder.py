"""A tiny cross-encoder: an ONNX model whose score of a pair is the sum of the values of the second text's words."""

from pathlib import Path

import pytest

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog"]
VALUES = {"cat": 1.0, "dog": 2.0}


def put_cross_encoder(folder: Path, labels: int = 1) -> Path:
    """Write the model; with two labels, the first is the negative of the second."""
    onnx, tokenizers = pytest.importorskip("onnx"), pytest.importorskip("tokenizers")
    pytest.importorskip("onnxruntime")
    import numpy as np
    from onnx import helper, numpy_helper

    values = np.array([VALUES.get(word, 0.0) for word in WORDS], np.float32)
    signs = np.array([[-1.0, 1.0]]) if labels == 2 else np.ones((1, labels))
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "length"]) for name in names]
    nodes = [
        helper.make_node("Gather", ["values", "input_ids"], ["all"]),
        helper.make_node("Cast", ["token_type_ids"], ["is_second"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["all", "is_second"], ["second"]),
        helper.make_node("ReduceSum", ["second", "axis"], ["total"], keepdims=1),
        helper.make_node("MatMul", ["total", "signs"], ["logits"]),
    ]
    constants = [
        numpy_helper.from_array(values, "values"),
        numpy_helper.from_array(np.array([1]), "axis"),
        numpy_helper.from_array(signs.astype(np.float32), "signs"),
    ]
    outputs = [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
