"""The training of a spec among ranks: each sees its share of every batch."""

from ..distributed import Topology, data_parallel
from ..errors import SpecError
from ..training import Training
from .envelope import Spec


def shared_training(spec: Spec, training: Training, topology: Topology) -> Training:
    """The training of one process as a rank of several does it.

    Raises:
        SpecError: If first weights that are loaded whole would be needed in parts.
    """
    settings = spec.runtime.distributed
    if spec.source is not None and settings.shard_state == "parameters":
        raise SpecError("/runtime/distributed/shard_state: weights of `source` are loaded whole; use gradients at most")
    return data_parallel(training, topology, batch_norm=settings.batch_norm, shard_state=settings.shard_state)
