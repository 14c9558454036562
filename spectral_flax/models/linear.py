"""A dense layer whose weight gradient is one large matrix product, and the initialisers."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Array = jax.Array
Initializer = Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Init:
    """How a family of models draws its weights: a kernel initialiser, and a bias one by fan-in."""

    kernel: Initializer
    bias: Callable[[int], Initializer]

    def scaled(self, factor: float) -> "Init":
        """The same with every kernel weight times `factor`."""
        if factor == 1.0:
            return self
        return Init(lambda *args, **kwargs: factor * self.kernel(*args, **kwargs), self.bias)


def _uniform_bias(fan_in: int) -> Initializer:
    def init(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        limit = fan_in**-0.5
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init


INITS = {
    # PyTorch's default for nn.Linear: weights and biases uniform in +-1/sqrt(fan_in).
    "torch": Init(nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"), _uniform_bias),
    # timm's for ViT.
    "trunc_normal": Init(
        nn.initializers.truncated_normal(0.02), lambda fan_in: nn.initializers.zeros
    ),
    # GPT-2's.
    "normal": Init(nn.initializers.normal(0.02), lambda fan_in: nn.initializers.zeros),
}


def project(x: Array, kernel: Array, bias: Array | None = None) -> Array:
    """Returns x @ kernel + bias for x [..., D], kernel [D, F], bias [F], in x's dtype.

    Leading axes are flattened first: XLA's CPU back end runs the weight gradient of
    [B, T, D] x [D, F] at half the speed of [B*T, D] x [D, F]. On GPU and TPU it is a bitcast.
    """
    y = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    if bias is not None:
        y = y + bias.astype(x.dtype)[None]
    return y.reshape(*x.shape[:-1], kernel.shape[-1])


class Linear(nn.Module):
    """Dense layer on the last axis: [..., D] -> [..., features]; parameters are float32."""

    features: int
    use_bias: bool = True
    initializers: Init = INITS["torch"]  # `init` is a method of every module

    @nn.compact
    def __call__(self, x: Array) -> Array:
        fan_in = x.shape[-1]
        kernel = self.param("kernel", self.initializers.kernel, (fan_in, self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", self.initializers.bias(fan_in), (self.features,))
        return project(x, kernel, bias)
