"""ViT-B/16, 86M parameters, on ImageNet as DeiT trains it: 300 epochs, for a pod.

    python -m spectral_flax.train --config configs/vit_b16.py --config.data_dir=gs://BUCKET/tfds

A chip that 86M parameters fill: add --config.parallel=fsdp or --config.remat=full.
"""

from spectral_flax.recipes import vit


def get_config(data: str = ""):
    """data: as for vit_ti.py; tfds=imagenet2012,augment=deit by default."""
    return vit.vit_b16("standard", data)
