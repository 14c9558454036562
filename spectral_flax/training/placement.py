"""Where arrays lie: whole on every device, or in equal shares."""

from typing import Any

import jax

from spectral_flax.training.step import AXIS


def replicated() -> jax.sharding.Sharding:
    """Whole on every device of every process."""
    mesh = jax.sharding.Mesh(jax.devices(), (AXIS,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def placed(abstract_tree: Any, shardings: Any) -> Any:
    """Shapes and types with where each array is to lie: what a checkpoint is restored onto.

    shardings: a tree like the first, or one sharding for all.
    """
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda _: shardings, abstract_tree)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        abstract_tree,
        shardings,
    )


def everywhere(tree: Any) -> Any:
    """Turns what pmap returns, whole on each device of this process, into arrays of all devices.

    They are the same arrays where there is one process. Orbax saves no others.
    """
    if jax.process_count() == 1:
        return tree
    sharding = replicated()

    def join(x: jax.Array) -> jax.Array:
        copies = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, copies)

    return jax.tree.map(join, tree)


class Residents:
    """Copies arrays to every device once, so that steps move row numbers only.

    Sources may share an array; it is copied once.
    """

    def __init__(self, sharding: jax.sharding.Sharding) -> None:
        self._sharding = sharding
        self._copies: dict[int, tuple[Any, jax.Array]] = {}  # the array itself keeps its id taken

    def __call__(self, data: Any) -> Any:
        """Returns the tree with its arrays on the devices."""
        return jax.tree.map(self._copy, data)

    def _copy(self, array: Any) -> jax.Array:
        if id(array) not in self._copies:
            self._copies[id(array)] = (array, jax.device_put(array, self._sharding))
        return self._copies[id(array)][1]
