"""Where batches come from: sources, augmentation, corruption, tokens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spectral_flax.data.corruption import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "corrupt"]


def __getattr__(name: str) -> Any:
    """Imports the corruptions when they are asked for: OpenCV takes half a second."""
    if name in __all__:
        from spectral_flax.data import corruption

        return getattr(corruption, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
