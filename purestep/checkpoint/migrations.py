"""The table of steps between versions of a state's fields.

A checkpoint stays readable when the fields of a state change: a row takes the leaves of one version and gives those of the next. A
step is a pure function of `{path: leaf}`; it renames or drops leaves, or changes a scalar's value. Rows are never removed.
"""

from collections.abc import Callable, Mapping

from ..errors import CheckpointVersionError
from .manifest import Leaf, Manifest, Schema

Migration = Callable[[dict[str, Leaf]], dict[str, Leaf]]

# (type, version it starts from) -> step to the next version
MIGRATIONS: Mapping[tuple[str, int], Migration] = {}


def migrate(manifest: Manifest, wanted: Schema, table: Mapping[tuple[str, int], Migration], where: str) -> Manifest:
    """Bring the leaves of a manifest to the version of the target, if both are of one type.

    Raises:
        CheckpointVersionError: If the checkpoint is newer than the target, or a step is missing.
    """
    saved = manifest.state_schema
    if saved.name != wanted.name or saved.version == wanted.version:
        return manifest
    leaves = {leaf.path: leaf for leaf in manifest.leaves}
    for version in range(saved.version, wanted.version):
        step = table.get((wanted.name, version))
        if step is None:
            raise CheckpointVersionError(
                f"{where}: {wanted.name} {saved.version} -> {wanted.version}: no migration {version} -> {version + 1} in the table"
            )
        leaves = step(leaves)
    if saved.version > wanted.version:
        raise CheckpointVersionError(
            f"{where}: {wanted.name} {saved.version} is newer than this purestep's {wanted.version}; upgrade purestep"
        )
    return manifest.model_copy(update={"leaves": [leaf.model_copy(update={"path": path}) for path, leaf in leaves.items()]})
