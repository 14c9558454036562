"""Files that are not what they say: one UserError of one line, and never more memory than a file.

What is read: other people's weights (safetensors, .npz, config.json), images (.npz), vectors and
corrupted images (.npy), and what tokens mean (meta.json). The cases at the end are what was found.
"""

import io
import json
import pathlib
import resource
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_flax.array_files import map_npy, open_npz
from spectral_flax.data.images import load_images
from spectral_flax.data.tokenizer import load_tokenizer
from spectral_flax.errors import UserError
from spectral_flax.evaluation.results import read_results
from spectral_flax.interop import load_attention
from spectral_flax.interop.config import Config
from spectral_flax.interop.weights import open_weights
from spectral_flax.steering.direction import find_direction
from spectral_flax.training.saved_run import read_config

_MEGABYTE = 2**20
JUNK = [None, True, -1, 0, 0.5, 1e308, 2**70, "", "abc", [], [1], {}, {"a": [[]]}]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def line_of(read, *arguments) -> str:
    """What UserError says, in one line; "" where there was none. Anything else fails the test."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(*arguments)
        line = ""
    except UserError as error:
        line = str(error)
        assert len(line.splitlines()) == 1 and len(line) < 5000, line
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 200 * _MEGABYTE, "it read what a header claims, not what is there"
    return line


def header_of(descr, shape) -> bytes:
    """A .npy header that claims anything."""
    out = io.BytesIO()
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return out.getvalue()


def images() -> dict[str, np.ndarray]:
    x, y = np.zeros((4, 2, 2, 1), np.uint8), np.arange(4)
    return dict(x_train=x, y_train=y, x_test=x, y_test=y)


def read_npz(file):
    with open_npz(file, "write it again") as members:
        for member in members.values():
            member.read()


def read_weights(file):
    with open_weights(str(file)) as weights:
        for name, tensor in weights.tensors.items():
            weights.read(name, tensor.shape)


CLAIMS = [
    ("<f4", (2**40,)),
    ("<f4", (2**62, 2**62)),
    ("<f4", (-1,)),
    ("<f4", (0,)),
    ("<f4", ()),
    ("<f4", (True,)),
    ("<f4", "12"),
    ("<f4", None),
    ("<f4", (1.5,)),
    ("|O", (1,)),
    ("<U999999999", (1,)),
    ("nonsense", (1,)),
    (7, (1,)),
    ([("a", "<f4"), ("b", "|O")], (1,)),
    ("<M8[ns]", (3,)),
]


@pytest.mark.parametrize(("descr", "shape"), CLAIMS)
def test_headers_that_claim_anything(descr, shape, tmp_path):
    content = header_of(descr, shape) + bytes(24)
    (tmp_path / "claim.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "claim.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", content)
    assert line_of(read_vector, tmp_path / "claim.npy")
    message = line_of(lambda: load_images("npz", path=str(tmp_path / "claim.npz")))
    assert message.startswith(str(tmp_path / "claim.npz"))
    line_of(read_npz, tmp_path / "claim.npz")
    line_of(read_weights, tmp_path / "claim.npz")


def read_vector(file):
    class Facts:
        width = 5

    find_direction(f"vector:{file}", None, Facts, None)


def mutated(draw, content: bytes) -> bytes:
    """Some bytes changed, cut off or repeated."""
    bad = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        bad[draw(st.integers(0, len(bad) - 1))] = draw(st.integers(0, 255))
    end = draw(st.integers(0, len(bad)) | st.just(len(bad)))
    return bytes(bad[:end]) + bytes(bad[: draw(st.integers(0, 40) | st.just(0))])


def npz_bytes(compressed: bool) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **images())
    return out.getvalue()


def npy_bytes() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(5.0))
    return out.getvalue()


WHOLE = {
    "stored.npz": (npz_bytes(False), read_npz),
    "deflated.npz": (npz_bytes(True), read_npz),
    "images.npz": (npz_bytes(True), lambda file: load_images("npz", path=str(file))),
    "model.safetensors": (safetensors.numpy.save({"a": np.ones((2, 3))}), read_weights),
    "weights.npz": (npz_bytes(False), read_weights),
    "vector.npy": (npy_bytes(), read_vector),
    "vector.txt": (b"1 2 3 4 5\n", read_vector),
    "meta.json": (b'{"tokenizer": "chars", "characters": ["a", "b"]}', load_tokenizer),
}


def check_mutation(data, name, folder):
    content, read = WHOLE[name]
    file = folder / name
    file.write_bytes(mutated(data.draw, content))
    line_of(read, file)


@pytest.mark.filterwarnings("ignore")  # NumPy's, of what loadtxt finds empty
@pytest.mark.parametrize("name", WHOLE)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(data=st.data())
def test_mutated_files_are_read_or_refused(data, name, folder):
    check_mutation(data, name, folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WHOLE)
@settings(deadline=None, max_examples=3000)
@given(data=st.data())
def test_many_mutated_files_are_read_or_refused(data, name, folder):
    check_mutation(data, name, folder)


def test_every_value_of_a_config_json(tmp_path):
    """GPT-2's and BERT's config, one value at a time: what loads has the right type."""
    rng = np.random.default_rng(0)
    known = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 4, "vocab_size": 3}
    known |= {"n_positions": 2, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    known |= {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "n_inner": 8}
    shapes = {"attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,)}
    shapes |= {"attn.c_proj.weight": (4, 4), "attn.c_proj.bias": (4,)}
    tensors = {f"h.0.{n}": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(known))
    assert load_attention(str(tmp_path)).stack.num_layers == 1
    for name in known:
        for value in JUNK:
            (tmp_path / "config.json").write_text(json.dumps(known | {name: value}))
            line_of(load_attention, str(tmp_path))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(value=json_values)
def test_a_config_value_has_its_type_or_is_refused(value, folder):
    config = Config("config.json", {"a": value}, folder)
    for read in (config.integer, config.number):
        line = line_of(read, "a")
        assert line or type(read("a")) in (int, float)
    for read, default in ((config.flag, True), (config.text, "")):
        assert line_of(read, "a", default) or type(read("a", default)) is type(default)
    line_of(config.section, "a")


@settings(deadline=None, derandomize=True, max_examples=60)
@given(value=json_values, other=json_values)
def test_our_own_json_files(value, other, folder):
    """What a run and its results hold, written by hand: read or refused."""
    for content in (value, {"settings": value, "accuracy": other}, {"vocab_size": value}):
        for name in ("meta.json", "corruptions.json"):
            (folder / name).write_text(json.dumps(content))
        line_of(load_tokenizer, folder / "meta.json")
        line_of(read_results, folder / "corruptions.json", {}, False)
    run = {"task": "parity", "model": value, "seed": other, "training": {"log_every": value}}
    (folder / "config.json").write_text(json.dumps(run))
    line_of(read_config, folder)


@pytest.mark.parametrize("read", [load_tokenizer, lambda file: read_config(file.parent)])
def test_found_json_that_nests_without_end(read, tmp_path):
    for name in ("meta.json", "config.json"):
        (tmp_path / name).write_text("[" * 100_000)
    assert "json" in line_of(read, tmp_path / "meta.json")


def test_found_an_archive_where_an_array_should_be(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    assert "cannot be read" in line_of(read_vector, tmp_path / "a.npy")
    with pytest.raises(ValueError, match="magic"):
        map_npy(tmp_path / "a.npy")


@pytest.mark.parametrize("read", [load_tokenizer, read_vector], ids=["meta", "vector"])
def test_found_a_file_without_an_end(read):
    assert "it is a device" in line_of(read, pathlib.Path("/dev/zero"))


def test_found_complex_numbers_lost_their_imaginary_part(tmp_path):
    np.save(tmp_path / "a.npy", np.full(5, 1j))
    assert "complex128" in line_of(read_vector, tmp_path / "a.npy")


def test_found_a_vocabulary_of_no_size(tmp_path):
    (tmp_path / "meta.json").write_text('{"vocab_size": true}')
    line = line_of(load_tokenizer, tmp_path / "meta.json")
    assert line == f"{tmp_path / 'meta.json'}: vocab_size is True; expected an integer"


def test_found_a_name_with_a_line_break(tmp_path):
    line = line_of(lambda: load_images("npz", path=str(tmp_path / "a\nb.npz")))
    assert "a\\nb.npz: no such file" in line


def test_found_a_path_that_was_ignored():
    assert "data.path is 'my.npz', but digits has none" in line_of(
        lambda: load_images("digits", path="my.npz")
    )
