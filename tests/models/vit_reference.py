"""A ViT forward in plain float64 NumPy, from the recipe's words."""

import math

import numpy as np

ERF = np.vectorize(math.erf)


def forward(config, params, images: np.ndarray) -> dict:
    """logits [B, C], attention [L, B, H, T, T] and after_attention, after_mlp [L, B, T, D]."""
    params = _as_float64(params)
    model = config.model
    x = _patches(images.astype(np.float64), model.patch_size)
    x = x @ params["patch_embed"]["kernel"] + params["patch_embed"]["bias"]
    cls = np.broadcast_to(params["cls"], (len(x), 1, model.width))
    x = np.concatenate([cls, x], axis=1) + params["position"]
    captured = {"attention": [], "after_attention": [], "after_mlp": []}
    for run in sorted(params["encoder"]):
        layers = params["encoder"][run]
        w_v, w_o = _value_output(config, layers["h"])
        for i in range(len(w_v)):
            x = _layer(model, _take(layers["blocks"], i), w_v[i], w_o[i], x, captured)
    x = _norm(x[:, 0], params["head_norm"], model.norm_epsilon)
    logits = x @ params["head"]["kernel"] + params["head"]["bias"]
    return {"logits": logits} | {name: np.stack(values) for name, values in captured.items()}


def _as_float64(tree):
    if isinstance(tree, dict):
        return {name: _as_float64(value) for name, value in tree.items()}
    return np.asarray(tree, np.float64)


def _take(tree, i):
    if isinstance(tree, dict):
        return {name: _take(value, i) for name, value in tree.items()}
    return tree[i]


def _patches(images, size):
    """One token for each patch, row by row; inside a patch: row, column, channel."""
    batch, height, width, _ = images.shape
    tokens = [
        images[:, r : r + size, c : c + size].reshape(batch, -1)
        for r in range(0, height, size)
        for c in range(0, width, size)
    ]
    return np.stack(tokens, axis=1)


def _value_output(config, h):
    """W_V, W_O [L, D, D] by OS section 4."""
    if "w_v" in h:
        return h["w_v"], h["w_o"]
    sign = 1.0 if "plus" in config.model.variant else -1.0
    lam = sign * h["psi"][..., None] ** 2
    if "v" in h:
        return h["v"], lam * np.linalg.inv(h["v"])
    v = np.linalg.qr(h["theta"])[0]
    return v, lam * v.swapaxes(1, 2)


def _norm(x, params, epsilon):
    params = params["LayerNorm_0"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * params["scale"] + params["bias"]


def _layer(model, params, w_v, w_o, x, captured):
    y = _norm(x, params["attention_norm"], model.norm_epsilon)
    branch, attention = _attention(model, params["attention"], w_v, w_o, y)
    if model.variant == "featscale":
        mean = branch.mean(axis=1, keepdims=True)
        scale = params["featscale"]
        extra = scale["low"] * mean + scale["high"] * (branch - mean)
        branch = branch + model.featscale_factor * extra
    x = x + branch
    captured["attention"].append(attention)
    captured["after_attention"].append(x)
    y = _norm(x, params["mlp_norm"], model.norm_epsilon)
    hidden = y @ params["mlp"]["up"]["kernel"] + params["mlp"]["up"]["bias"]
    hidden = hidden * 0.5 * (1.0 + ERF(hidden / math.sqrt(2.0)))
    x = x + hidden @ params["mlp"]["down"]["kernel"] + params["mlp"]["down"]["bias"]
    captured["after_mlp"].append(x)
    return x


def _attention(model, params, w_v, w_o, x):
    """Sum over heads of A_h X W_V,h W_O,h, the way the papers write it, plus the output bias."""
    size = model.width // model.num_heads
    w_qk = params["query_key"]
    bias = params.get("qkv_bias", np.zeros(3 * model.width))
    b_qk, b_v = bias[: 2 * model.width], bias[2 * model.width :]
    total, maps = params["out_bias"], []
    for head in range(model.num_heads):
        own = slice(head * size, (head + 1) * size)
        key = slice(model.width + own.start, model.width + own.stop)
        q, k = x @ w_qk[:, own] + b_qk[own], x @ w_qk[:, key] + b_qk[key]
        scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(size))
        a = scores / scores.sum(-1, keepdims=True)
        if model.variant == "attnscale":
            uniform = 1.0 / a.shape[-1]
            scale = params["AttnScale_0"]["attention_scale"][head]
            a = uniform + (1.0 + scale) * (a - uniform)
        total = total + a @ (x @ w_v[:, own] + b_v[own]) @ w_o[own]
        maps.append(a)
    return total, np.stack(maps, axis=1)
