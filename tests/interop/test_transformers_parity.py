"""Attention maps, hidden states and logits equal those of transformers' PyTorch models."""

import numpy as np
import pytest

from spectral_flax.interop import load_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# What PyTorch warns of at import or about CPU features is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = np.random.default_rng(0).integers(3, 11, (2, 8))
IMAGES = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
SIZES = dict(hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20)
BERT = dict(vocab_size=11, max_position_embeddings=9, **SIZES)
IMAGE = dict(image_size=8, patch_size=4, num_labels=3, **SIZES)
IDS = dict(bos_token_id=1, eos_token_id=2)
GPT2 = dict(vocab_size=11, n_embd=12, n_head=3, n_layer=3, n_positions=9, **IDS)
NEO = dict(
    vocab_size=11,
    hidden_size=12,
    num_layers=4,
    num_heads=3,
    attention_types=[[["global", "local"], 2]],
    window_size=3,
    max_position_embeddings=9,
    **IDS,
)
CASES = {
    "bert": ("BertModel", "BertConfig", BERT),
    "albert": ("AlbertModel", "AlbertConfig", BERT | dict(embedding_size=5)),
    "albert, groups of two": (
        "AlbertModel",
        "AlbertConfig",
        BERT | dict(embedding_size=5, num_hidden_groups=2, num_hidden_layers=4, inner_group_num=2),
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2 by depth": (
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2 | dict(scale_attn_by_inverse_layer_idx=True, n_inner=20),
    ),
    "gpt2 unscaled": ("GPT2Model", "GPT2Config", GPT2 | dict(scale_attn_weights=False)),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig", NEO),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE),
    "vit without head": ("ViTModel", "ViTConfig", IMAGE | dict(qkv_bias=False)),
    "deit": ("DeiTForImageClassification", "DeiTConfig", IMAGE),
    "deit distilled": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", IMAGE),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_transformers(name, tmp_path):
    model_class, config_class, values = CASES[name]
    config = getattr(transformers, config_class)(attn_implementation="eager", **values)
    theirs = getattr(transformers, model_class)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():  # no bias at 0, no scale at 1
            parameter += 0.3 * torch.randn_like(parameter)
        theirs.save_pretrained(tmp_path)
        if "vit" in name or "deit" in name:
            inputs, call = IMAGES, dict(pixel_values=torch.tensor(IMAGES.transpose(0, 3, 1, 2)))
        else:
            inputs, call = TEXT, dict(input_ids=torch.tensor(TEXT))
        out = theirs(**call, output_hidden_states=True, output_attentions=True)

    ours = load_model(str(tmp_path)).forward(inputs)
    seen = ours.activations
    np.testing.assert_allclose(seen.attention, np.stack(out.attentions), atol=1e-4)
    # The last of theirs is after the final norm in some families.
    inside = [seen.embedded, *seen.after_mlp[: len(out.hidden_states) - 2]]
    if name != "albert, groups of two":  # theirs are those after each group
        np.testing.assert_allclose(
            np.stack(inside), np.stack(out.hidden_states[:-1]), atol=1e-4, rtol=1e-5
        )
    if "last_hidden_state" in out:
        np.testing.assert_allclose(ours.hidden, out.last_hidden_state, atol=1e-4)
    if "logits" in out:
        np.testing.assert_allclose(ours.logits, out.logits, atol=1e-4)


def test_names_of_transformers_5_on_disk(tmp_path):
    config = transformers.ViTConfig(**IMAGE)
    theirs = transformers.ViTModel(config).eval()
    try:
        theirs.save_pretrained(tmp_path, save_original_format=False)
    except TypeError:
        pytest.skip("this transformers is older than 5")
    with torch.no_grad():
        out = theirs(torch.tensor(IMAGES.transpose(0, 3, 1, 2)))
    model = load_model(str(tmp_path))
    assert model.attention.family == "vit"
    np.testing.assert_allclose(model.forward(IMAGES).hidden, out.last_hidden_state, atol=1e-4)
