"""`python -m spectral_flax.steer`: what changes, what does not, what it does, what is refused."""

import json
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from spectral_flax import steer as steer_command
from spectral_flax.interop import load_attention_stack, load_model
from tests.command_runner import run_command
from tests.interop import tiny_checkpoints
from tests.saved_runs import save_run
from tests.tiny_models import noisy, tiny_config, tiny_gpt_config

WORDS = ["[CLS]", "[SEP]", "[UNK]", "the", "cat", "sat", "on", "a", "mat", "##s", "dog"]
# The tensor of each family's last output projection, and a file that is not the weights.
OUTPUTS = {
    "bert": "encoder.layer.1.attention.output.dense.weight",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense.weight",
    "gpt2": "h.1.attn.c_proj.weight",
    "gpt_neo": "transformer.h.1.attn.attention.out_proj.weight",
    "vit": "vit.encoder.layer.1.attention.output.dense.weight",
    "timm": "blocks.1.attn.proj.weight",
    "llama": "model.layers.1.self_attn.o_proj.weight",
}


@pytest.fixture
def steer(monkeypatch, capsys, tmp_path):
    """Runs the command in an empty folder, on few random tokens: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return run_command(steer_command, monkeypatch, capsys, "--prompts=3", *arguments)

    return run


def write(family: str, folder: pathlib.Path) -> pathlib.Path:
    """A tiny model's new folder, with a tokeniser of words and pieces of them."""
    folder.mkdir()
    tokenizers = pytest.importorskip("tokenizers")
    made = (
        tiny_checkpoints.llama_like("llama")
        if family == "llama"
        else getattr(tiny_checkpoints, family)()
    )
    made.write(folder)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=50)
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tensors_of(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", OUTPUTS)
def test_only_the_output_projection_changes(family, steer, tmp_path):
    source = write(family, tmp_path / "model")
    code, out, err = steer(
        *(f"--weights={source}", "--direction=random:3", "--sigma=40", "--out=steered")
    )
    assert code == 0, err
    before, after = tensors_of(source), tensors_of(tmp_path / "steered")
    assert list(before) == list(after)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == [OUTPUTS[family]] and OUTPUTS[family] in out
    assert after[OUTPUTS[family]].dtype == before[OUTPUTS[family]].dtype
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "steered" / name).read_bytes() == (source / name).read_bytes()

    # By definition, in our layout: F gains sigma w w^T, w a unit vector of seed 3.
    stacks = [load_attention_stack(str(folder)) for folder in (source, tmp_path / "steered")]
    was, now = (np.float64(stack.layer_matrices()[-1]) for stack in stacks)
    w = np.random.default_rng(3).standard_normal(len(was))
    w /= np.linalg.norm(w)
    w_v = np.float64(stacks[0].full_w_v()[-1])
    reached = w_v @ np.linalg.lstsq(w_v, w, rcond=None)[0]  # all of w, but for grouped queries
    np.testing.assert_allclose(now - was, 40 * np.outer(w, reached), atol=2e-3)
    record = json.loads((tmp_path / "steered" / "steering.json").read_text())
    (layer,) = record["layers"]
    np.testing.assert_allclose(layer["sigma_effective"], 40 * reached @ w, rtol=1e-3)
    np.testing.assert_allclose(layer["residual"], np.linalg.norm(reached - w), atol=2e-3)
    top = np.linalg.eigvals(now).real.max()
    np.testing.assert_allclose(layer["steered"]["value"][0], top, rtol=1e-3)
    assert layer["steered"]["tokens"] > layer["before"]["tokens"]
    assert (tmp_path / "steered" / "steering.png").stat().st_size > 10_000


def test_a_shared_layer_is_changed_once_and_the_times_it_runs_are_said(steer, tmp_path):
    source = write("albert", tmp_path / "model")
    code, out, err = steer(
        *("--weights=model", "--direction=token:cat", "--sigma=30", "--out=a/steered")
    )
    assert code == 0, err
    assert "which runs 12 times" in out
    record = json.loads((tmp_path / "a/steered/steering.json").read_text())
    assert len(record["alignment"]["steered"]) == 12
    embedding = tensors_of(source)["albert.embeddings.word_embeddings.weight"][WORDS.index("cat")]
    mapping = tensors_of(source)["albert.encoder.embedding_hidden_mapping_in.weight"]
    w = mapping @ embedding
    np.testing.assert_allclose(record["layers"][0]["direction"], w / np.linalg.norm(w), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_the_type_of_the_file_is_kept(dtype, steer, tmp_path):
    source = write("gpt2", tmp_path / "model")
    halves = {name: t.astype(dtype) for name, t in tensors_of(source).items()}
    file = source / "model.safetensors"
    safetensors.numpy.save_file(halves, file, metadata={"format": "pt"})
    code, _, err = steer("--weights=model", "--direction=random:0", "--sigma=20", "--out=16")
    assert code == 0, err
    with safetensors.safe_open(tmp_path / "16" / "model.safetensors", "numpy") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert opened.get_tensor("h.1.attn.c_proj.weight").dtype == dtype
    if dtype == np.float16:
        code, out, err = steer(
            *("--weights=model", "--direction=random:0", "--sigma=1e7", "--out=too_much")
        )
        assert code == 1 and "'h.1.attn.c_proj.weight' does not fit into float16" in err
        assert not (tmp_path / "too_much").exists()


def test_a_language_model_is_steered_to_a_word(steer, tmp_path):
    """With w_l from its tokens they go to the word's positive side, and it becomes likeliest."""
    source = write("gpt2", tmp_path / "model")
    for file in ("pytorch_model.bin", "old.safetensors", "notes.md"):
        (source / file).write_bytes(b"x")
    code, out, err = steer(
        *("--weights=model", "--direction=token:cat", "--sigma=3000", "--layers=0-1"),
        *("--left=tokens", "--prompt=the dog sat", "--out=cat"),
    )
    assert code == 0, err
    assert "likeliest tokens after 'the dog sat'" in out
    assert re.search(r"steered  'cat' [\d.]+%, .*; 'cat' is number 1, with", out)
    assert "note: not copied, being other weights: old.safetensors, pytorch_model.bin" in out
    copied = {file.name for file in (tmp_path / "cat").iterdir()}
    assert copied == {
        *("config.json", "model.safetensors", "tokenizer.json", "notes.md"),
        *("steering.json", "steering.png"),
    }
    record = json.loads((tmp_path / "cat/steering.json").read_text())
    logits = load_model(str(tmp_path / "cat")).forward(np.array([[3, 10, 5]])).logits[0, -1]
    share = np.exp(logits - np.max(logits))
    share = share[WORDS.index("cat")] / share.sum()
    np.testing.assert_allclose(record["next_tokens"]["steered"]["word"][1], share, rtol=1e-5)


def test_compensation_aims_behind_the_mlp(steer, tmp_path):
    write("bert", tmp_path / "model")
    code, out, err = steer(
        *("--weights=model", "--direction=vector:w.txt", "--sigma=500", "--out=aimed"),
        "--compensate",
    )
    assert code == 1 and "w.txt cannot be read: No such file" in err or "not found" in err
    w = np.random.default_rng(5).standard_normal(12)
    np.savetxt(tmp_path / "w.txt", w)
    code, out, err = steer(
        *("--weights=model", "--direction=vector:w.txt", "--sigma=500", "--out=aimed"),
        "--compensate",
    )
    assert code == 0, err
    assert re.search(r"through the MLP +cosine [\d.]+, residual", out)
    (layer,) = json.loads((tmp_path / "aimed/steering.json").read_text())["layers"]
    aim = np.float32(layer["direction"])
    assert abs(aim @ w) / np.linalg.norm(w) < 0.99, "it is not the direction itself"
    assert layer["mlp"]["cosine"] > 0.5


def test_an_npz_and_a_single_file(steer, tmp_path):
    made = tiny_checkpoints.flax_vit("vit_jax", "")
    path = tiny_checkpoints.write_npz(made, tmp_path)
    code, _, err = steer(f"--weights={path}", "--direction=random:1", "--sigma=9", "--out=npz")
    assert code == 0, err
    before, after = np.load(path), np.load(tmp_path / "npz" / "weights.npz")
    changed = [name for name in before.files if not np.array_equal(before[name], after[name])]
    name = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"
    assert changed == [name] and after[name].shape == (2, 5, 12)

    file = write("bert", tmp_path / "one") / "model.safetensors"
    code, _, err = steer(f"--weights={file}", "--direction=token:cat", "--sigma=9", "--out=file")
    assert code == 0, err
    assert load_attention_stack(str(tmp_path / "file")).num_layers == 2


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of ours on bytes, of layers with a chosen spectrum."""
    config = tiny_gpt_config("minus", depth=2)
    workdir = tmp_path_factory.mktemp("gpt")
    save_run(workdir, config, lambda params: noisy(params, 0, 0.2))
    (workdir / "tokenizer.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    return workdir


def test_a_run_of_ours_becomes_a_steered_gpt2(steer, run_dir, tmp_path):
    code, out, err = steer(
        *(f"--workdir={run_dir}", "--direction=token:q", "--sigma=2000", "--left=tokens"),
        *("--prompt=ab", "--out=steered"),
    )
    assert code == 0, err
    assert re.search(r"before   .*; 'q' is number \d+, with .*\n  steered  .*; 'q' is", out)
    assert json.loads((tmp_path / "steered/run_tokenizer.json").read_text())["tokenizer"] == "bytes"
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "steered", attn_implementation="eager"
    ).eval()
    tokens = np.random.default_rng(1).integers(0, 256, (64, 8))
    with torch.no_grad():
        logits = theirs(torch.tensor(tokens)).logits
    ours = load_model(str(tmp_path / "steered")).forward(tokens).logits
    np.testing.assert_allclose(ours, logits, atol=2e-4, rtol=1e-4)
    # Most tokens of this model of noise, which have little in common, are at the word's side.
    share = np.mean(np.asarray(ours).argmax(axis=-1) == ord("q"))
    assert share > 0.5


@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_a_steered_bert(steer, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
    config = transformers.BertConfig(vocab_size=11, max_position_embeddings=9, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    code, _, err = steer("--weights=model", "--direction=random:1", "--sigma=50", "--out=new")
    assert code == 0, err
    plain, steered = (
        transformers.BertModel.from_pretrained(tmp_path / name, attn_implementation="eager").eval()
        for name in ("model", "new")
    )
    with torch.no_grad():
        was, now = (m(torch.tensor([[3, 4, 5]])).last_hidden_state for m in (plain, steered))
    ours = load_model(str(tmp_path / "new")).forward(np.array([[3, 4, 5]]))
    np.testing.assert_allclose(ours.hidden, now, atol=1e-4)
    assert (now - was).abs().max() > 0.1


GOOD = ("--weights={bert}", "--direction=random:0", "--sigma=5", "--out=new")
BAD = {
    "nothing": ([], "give one of --weights PATH and --workdir RUN"),
    "both": (["--workdir=x"], "give one of --weights"),
    "no direction": (["--direction="], "no --direction given; expected token:WORD, vector:FILE"),
    "kind": (["--direction=tokens:cat"], "--direction tokens:cat; expected token:WORD"),
    "seed": (["--direction=random:x"], "'x' is no seed"),
    "sigma": (["--sigma=0"], "--sigma is 0.0; expected a number above 0"),
    "negative": (["--sigma=-3"], "--sigma is -3.0; expected a number above 0"),
    "nan": (["--sigma=nan"], "--sigma is nan; expected a number above 0"),
    "exists": (["--out={bert}"], "exists, and nothing is overwritten"),
    "out": (["--out="], "no --out given"),
    "a file": (["--out={bert}/config.json"], "is a file"),
    "layer": (["--layers=2"], "layer 2 is out of range; this model has 2, numbered 0 to 1"),
    "prompts": (["--prompts=0"], "--prompts is 0; expected at least 1"),
    "pieces": (
        ["--direction=token:cats"],
        "token:cats is 2 tokens, 'cat' \\+ '.*s'; choose a word that is one",
    ),
    "unknown": (["--direction=token:xyz"], "the model's vocabulary has no 'xyz'"),
    "short": (["--direction=vector:{short}"], r"has shape \[3\]; expected 12 numbers, the width"),
    "zero": (["--direction=vector:{zero}"], "is zero; expected a vector that points somewhere"),
    "infinite": (["--direction=vector:{infinite}"], "has NaN or infinite entries"),
    "no vector": (["--direction=vector:none.npy"], "none.npy cannot be read"),
    "no such model": (["--weights=none"], "none: no such file or folder"),
    "no words": (["--weights={vit}", "--direction=token:cat"], "a vit has no words"),
    "broken": (["--weights={broken}"], "NaN or infinite weights in encoder.layer.0"),
    "no output": (
        ["--weights={headless}"],
        "encoder.layer.0 has no output projection .'encoder.layer.0.attention.output.dense.weight'",
    ),
    "an image run": (["--weights=", "--workdir={images}"], "expected a language model's"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folders and vectors that BAD names."""
    root = tmp_path_factory.mktemp("inputs")
    for name in ("bert", "vit", "broken", "headless"):
        write("vit" if name == "vit" else "bert", root / name)
    output = "encoder.layer.0.attention.output.dense.weight"
    tensors = tensors_of(root / "bert")
    headless = {name: t for name, t in tensors.items() if ".attention.output.dense." not in name}
    tensors[output][2, 3] = np.nan
    safetensors.numpy.save_file(tensors, root / "broken" / "model.safetensors")
    safetensors.numpy.save_file(headless, root / "headless" / "model.safetensors")
    for name, vector in (
        ("short", np.ones(3)),
        ("zero", np.zeros(12)),
        ("infinite", [np.inf] * 12),
    ):
        np.save(root / f"{name}.npy", vector)
    save_run(root / "images", tiny_config(depth=2))
    return {path.stem: path for path in root.iterdir()}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(name, steer, inputs, tmp_path):
    arguments, words = BAD[name]
    given = () if name == "nothing" else GOOD
    code, out, err = steer(*(a.format(**inputs) for a in (*given, *arguments)))
    assert code == 1 and out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.search(words, err), err
    assert list(tmp_path.iterdir()) == []
