"""What arXiv 2401.04301 printed in its tables 2 to 5: (mean, plus or minus), None if not given."""

Printed = tuple[float, float | None]


def _row(*numbers: float) -> tuple[Printed, ...]:
    """Pairs of mean and spread, written one after the other."""
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


# CIFAR-100 accuracy in %, ViT-Ti, on 100, 50 and 10 % of the training images.
TABLE2 = {
    "standard": _row(66.78, 0.1, 56.38, 0.5, 32.47, 0.9),
    "featscale": _row(66.57, 0.5, 57.08, 0.3, 32.50, 0.4),
    "plus": _row(64.34, 0.3, 55.21, 0.5, 28.67, 0.5),
    "minus": _row(66.62, 0.3, 56.58, 0.3, 33.99, 0.4),
    "star": _row(67.84, 0.6, 57.78, 0.4, 33.64, 0.5),
    "ns_minus": _row(67.80, 0.2, 57.54, 0.1, 33.78, 0.3),
    "ns_star": _row(68.53, 0.6, 57.67, 0.3, 33.75, 0.2),
}
# The same on all images, with 12 and 24 layers.
TABLE3 = {
    "standard": _row(66.78, 0.1, 67.22, 0.1),
    "featscale": _row(66.57, 0.5, 67.71, 0.5),
    "plus": _row(64.34, 0.3, 65.65, 0.3),
    "minus": _row(66.62, 0.3, 66.76, 0.3),
    "star": _row(67.84, 0.6, 69.05, 0.1),
    "ns_minus": _row(67.80, 0.2, 67.09, 0.1),
    "ns_star": _row(68.53, 0.6, 69.64, 0.3),
}
# The same under corruptions of intensity 0 (none) to 5.
TABLE4 = {
    "standard": _row(66.78, 0.1, 61.59, 0.2, 57.75, 0.2, 53.12, 0.1, 49.32, 0.1, 39.17, 0.2),
    "featscale": _row(66.57, 0.5, 61.25, 0.5, 57.36, 0.6, 52.64, 0.6, 48.87, 0.5, 38.77, 0.4),
    "plus": _row(64.34, 0.3, 58.36, 0.4, 53.83, 0.5, 49.03, 0.6, 45.15, 0.6, 35.86, 0.6),
    "minus": _row(66.62, 0.3, 61.62, 0.2, 58.00, 0.3, 53.56, 0.2, 49.70, 0.3, 40.07, 0.2),
    "star": _row(67.84, 0.6, 62.49, 0.5, 58.82, 0.7, 54.32, 0.7, 50.40, 0.6, 40.38, 0.7),
    "ns_minus": _row(67.80, 0.2, 63.03, 0.2, 59.65, 0.1, 55.05, 0.3, 51.30, 0.1, 41.33, 0.1),
    "ns_star": _row(68.53, 0.6, 63.01, 0.1, 59.44, 0.3, 54.90, 0.4, 51.12, 0.4, 40.90, 0.4),
}
# Perplexity of NanoGPT-Ti trained on MiniPile: on its held-out part and on tiny Shakespeare.
TABLE5 = {
    "standard": ((21.864, None), (62.084, None)),
    "ns_plus": ((25.442, None), (71.870, None)),
    "ns_minus": ((24.436, None), (67.067, None)),
    "ns_star": ((22.968, None), (64.599, None)),
}
