"""Whatever is wrong with a checkpoint is one clear UserError; nothing is executed or unpickled."""

import dataclasses
import io
import json
import pickle
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from tiny_checkpoints import (
    LAYERS,
    Tiny,
    bert,
    flax_vit,
    gpt2,
    gpt_neo,
    llama_like,
    timm,
    write_npz,
)

from spectral_flax.analysis import condition_number
from spectral_flax.errors import UserError
from spectral_flax.interop import load_attention, load_attention_stack

QUERY = "encoder.layer.1.attention.self.query.weight"


def changed(tiny: Tiny, config: dict | None = None, **tensors) -> Tiny:
    """A copy with other config values, and other tensors; None takes one away."""
    kept = dict(tiny.tensors)
    for name, tensor in tensors.items():
        kept.pop(name) if tensor is None else kept.update({name: tensor})
    return dataclasses.replace(tiny, tensors=kept, config=tiny.config | (config or {}))


def refused(path, match: str) -> str:
    """The message of the UserError that loading raises."""
    with pytest.raises(UserError, match=match) as caught:
        load_attention_stack(str(path))
    return str(caught.value)


def test_no_weights(tmp_path):
    refused(tmp_path / "nowhere", "nowhere: no such file or folder")
    refused("", "no such file")
    refused(tmp_path, "holds no weights; expected model.safetensors")
    for name in ("a", "b"):
        safetensors.numpy.save_file({name: np.zeros(1)}, tmp_path / f"{name}.safetensors")
    refused(tmp_path, "2 safetensors files and no model.safetensors.index.json")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip", pickle.dumps({"a": 1}), b"x" * 99])
def test_not_a_safetensors_file(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "not a safetensors file, or a damaged one")


def test_mutated_headers(tmp_path):
    """Flipped bytes and wrong claims load the same or are refused, and never more than the file."""
    file = tmp_path / "model.safetensors"
    bert().write(tmp_path)
    good, rng = file.read_bytes(), np.random.default_rng(0)
    length = struct.unpack("<Q", good[:8])[0]
    for trial in range(150):
        bad = bytearray(good)
        for place in rng.integers(0, 8 + length, 1 + trial % 4):
            bad[place] = rng.integers(256)
        _loads_or_refuses(file, bytes(bad))
    for cut in rng.integers(0, len(good), 20):
        _loads_or_refuses(file, good[:cut])
    header = json.loads(good[8 : 8 + length])
    for claim in (
        {"shape": [2**40, 2**40]},
        {"shape": [-12, -12]},
        {"shape": "12"},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [576, 0]},
        {"dtype": "F99"},
        {"dtype": 7},
    ):
        text = json.dumps(header | {QUERY: header[QUERY] | claim}).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + good[8 + length :])
        refused(tmp_path, "not a safetensors file, or a damaged one")
    file.write_bytes(struct.pack("<Q", 2**62) + good[8:])
    refused(tmp_path, "not a safetensors file, or a damaged one")


def _loads_or_refuses(file, content: bytes) -> None:
    file.write_bytes(content)
    try:
        load_attention(str(file))
    except UserError as error:
        assert len(str(error)) < 5000


def shards(tmp_path, entries: dict[str, str] | None = None) -> None:
    tiny = bert()
    tiny.write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    where = dict.fromkeys(tiny.tensors, "one.safetensors") | (entries or {})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({QUERY: "two.safetensors"}, "shard two.safetensors is missing"),
        ({"lost": "one.safetensors"}, "one.safetensors: tensor 'lost' is missing"),
        ({QUERY: "../one.safetensors"}, "leaves the folder"),
        ({QUERY: "/etc/passwd"}, "'/etc/passwd', which leaves the folder"),
        ({QUERY: "below/one.safetensors"}, "leaves the folder"),
        ({QUERY: ".."}, "leaves the folder|missing"),
        ({QUERY: ""}, "leaves the folder"),
        ({QUERY: ["one.safetensors"]}, "leaves the folder"),
        ({QUERY: "pytorch_model.bin"}, "a PyTorch pickle"),
    ],
)
def test_index(entries, match, tmp_path):
    shards(tmp_path, entries)
    refused(tmp_path, match)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}', "[" * 100_000, "\xff"])
def test_damaged_index(content, tmp_path):
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(content.encode("latin1"))
    refused(tmp_path, r"model.safetensors.index.json: (no weight_map|holds a list|not readable)")


def test_tensor_missing_or_of_the_wrong_shape_is_named(tmp_path):
    def found(match, **tensors):
        return refused(changed(bert(), **tensors).write(tmp_path), match)

    found(f"tensor '{QUERY}' is missing", **{QUERY: None})
    bias = QUERY.replace("weight", "bias")
    found(f"tensor '{bias}' is missing", **{bias: None})
    wide = np.zeros((12, 13), np.float32)
    found(rf"tensor '{QUERY}' has shape \[12, 13\]; expected \[12, 12\]", **{QUERY: wide})
    found(rf"tensor '{QUERY}' has shape \[12\]; expected", **{QUERY: wide[:, 0]})
    found(f"tensor '{QUERY}' is I32; expected F32", **{QUERY: np.zeros((12, 12), np.int32)})
    more = changed(bert(), {"num_hidden_layers": 3})
    refused(
        more.write(tmp_path), r"tensor 'encoder.layer.2.attention.self.query.weight' is missing"
    )
    conv = changed(gpt2(), **{"h.1.attn.c_attn.weight": np.zeros((36, 12), np.float32)})
    refused(
        conv.write(tmp_path), r"'h.1.attn.c_attn.weight' has shape \[36, 12\]; expected \[12, 3"
    )


def test_unknown_architecture(tmp_path):
    rare = Tiny({"conv1.weight": np.zeros((3, 3), np.float32)}, {}, None, "")
    message = refused(rare.write(tmp_path), "not a known architecture")
    assert "unmatched tensors: conv1.weight" in message
    for family in ("bert", "albert", "gpt2", "gpt_neo", "vit", "deit", "llama", "timm", "vit_jax"):
        assert family in message
    # RoBERTa has BERT's names: config.json decides.
    roberta = changed(bert(), {"model_type": "roberta"})
    refused(roberta.write(tmp_path), "config.json says 'roberta'.*encoder.layer.0.attention")
    refused(changed(bert(), {"model_type": "gpt2"}).write(tmp_path), "says 'gpt2'")
    refused(changed(bert(), {"model_type": ["bert"]}).write(tmp_path), r"says \['bert'\]")


@pytest.mark.parametrize("name", ["self_attn.q_norm.weight", "self_attn.q_proj.lora_A.weight"])
def test_attention_that_four_matrices_do_not_describe(name, tmp_path):
    name = f"model.layers.0.{name}"
    extra = changed(llama_like("qwen2"), **{name: np.ones(4, np.float32)})
    refused(extra.write(tmp_path), f"'{name}' changes the attention of qwen2")


def test_nan_in_one_layer_names_it_and_leaves_the_others(tmp_path, caplog):
    tiny = bert()
    tiny.tensors[QUERY.replace("query", "value")][3, 4] = np.nan
    path = tiny.write(tmp_path)
    assert load_attention(path).non_finite == ("encoder.layer.1",)
    stack = load_attention_stack(path)
    assert "NaN or infinite weights in encoder.layer.1" in caplog.text
    assert np.isfinite(condition_number(stack.layer_matrices()[0]))
    assert np.isfinite(stack.layer_spectra()[0]).all()
    assert np.isnan(stack.layer_spectra()[1]).all()


@pytest.mark.parametrize(
    ("tiny", "config", "match"),
    [
        (bert(), {"num_attention_heads": 5}, "width of 12 does not divide into 5 attention heads"),
        (gpt2(), {"n_head": 7}, "width of 12 does not divide into 7"),
        (llama_like("llama"), {"num_key_value_heads": 3}, "4 attention heads do not divide over 3"),
        (timm(), {"num_heads": 5}, "does not divide into 5"),
        (timm(), {"architecture": "vit_odd"}, "number of heads is not known.*'vit_odd'"),
        (bert(), {"num_attention_heads": 0}, "num_attention_heads is 0; expected a whole number"),
        (bert(), {"num_attention_heads": True}, "num_attention_heads is True; expected"),
        (bert(), {"num_attention_heads": None}, "no num_attention_heads"),
        (bert(), {"hidden_size": 10**30}, "hidden_size is 1"),
        (bert(), {"hidden_size": 2**31 - 4, "num_attention_heads": 4}, "has shape"),
        (bert(), {"num_hidden_layers": 10**9}, "from 1 to 10000"),
        (bert(), {"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'"),
        (gpt2(), {"scale_attn_weights": "no"}, "scale_attn_weights is 'no'; expected true or"),
        (gpt_neo(), {"attention_types": [[["global", "local"], 10**12]]}, "attention_types is"),
        (gpt_neo(), {"attention_types": [[["near"], LAYERS]]}, "attention_types is"),
        (gpt_neo(), {"attention_types": "local"}, "attention_types is"),
        (llama_like("qwen2"), {"layer_types": ["chunked_attention"] * LAYERS}, "layer_types is"),
    ],
)
def test_config_values(tiny, config, match, tmp_path):
    refused(changed(tiny, config).write(tmp_path), match)


@pytest.mark.parametrize("content", ["{", "[1]", "\xff\xfe", "[" * 100_000, "1" * 9999])
def test_damaged_config(content, tmp_path):
    bert().write(tmp_path)
    (tmp_path / "config.json").write_bytes(content.encode("latin1"))
    refused(tmp_path, "config.json: (not readable as JSON|holds a list)")


def test_no_config(tmp_path):
    bert().write(tmp_path)
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "config.json: no hidden_size.*put the model's config.json beside")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "vit.pth", "model.pt"])
def test_pickles_are_refused_unopened(name, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "boom"), "w"))

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    for path in (tmp_path, tmp_path / name):
        message = refused(path, "a PyTorch pickle, which can run code")
        assert "weights_only=True" in message and name in message.splitlines()[0]
    assert not (tmp_path / "boom").exists()


def test_the_lines_that_convert_pickles_work(tmp_path):
    torch = pytest.importorskip("torch")
    whole = bert()
    path = whole.write(tmp_path)
    expected = load_attention_stack(path)
    (tmp_path / "model.safetensors").unlink()
    tensors = {k: torch.from_numpy(v) for k, v in whole.tensors.items()}
    tensors["embeddings.tied"] = tensors["embeddings.word_embeddings.weight"]
    halves = [k for k in tensors if "layer.0" in k], [k for k in tensors if "layer.0" not in k]
    for i, names in enumerate(halves):
        part = {k: tensors[k] for k in names}
        content = {"state_dict": part} if i else part
        torch.save(content, tmp_path / f"pytorch_model-0000{i + 1}-of-00002.bin")
    lines = refused(path, "a PyTorch pickle").split("\n", 1)[1]
    exec(lines, {})
    np.testing.assert_array_equal(load_attention_stack(path).w_q, expected.w_q)


def test_npz(tmp_path):
    tiny = flax_vit("vit_jax", "")
    path = write_npz(tiny, tmp_path)
    file = tmp_path / "weights.npz"
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2])
    refused(path, "not an .npz file, or a truncated one")
    np.savez(file, **tiny.tensors, extra=np.asarray([{"a": 1}], dtype=object))
    refused(path, "'extra' holds pickled Python objects, which are never loaded")
    kernel = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"
    flat = changed(tiny, **{kernel: np.zeros((10, 12), np.float32)})
    refused(
        write_npz(flat, tmp_path),
        rf"'{kernel}' has shape \[10, 12\]; expected \[2, 5, 12\]",
    )
    rng = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(good)
        for place in rng.integers(0, len(good), 3):
            bad[place] = rng.integers(256)
        _loads_or_refuses(file, bytes(bad))


def test_npz_header_that_claims_a_terabyte(tmp_path):
    header = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": (2**20, 2, 2**17)}
    np.lib.format.write_array_header_1_0(header, claim)
    path = tmp_path / "huge.npz"
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.npy", header.getvalue() + bytes(480))
    refused(path, f"'{name}' is not as long as its header says")
