"""Many processes that train one model: who they are, how they add, decide and save together.

`torch.distributed` is the engine; torchrun or Slurm start the processes. Nothing wraps a module: every rank runs the pure step on its
share of the batch, and sums over ranks are operations of that step.
"""

from .checks import SameState, check_same_state, check_same_text, collective_order_checked
from .initialising import init_in_parts
from .parallel import data_parallel, shard
from .part_files import restore_in_parts
from .reduction import sum_over_ranks
from .saving import SharedCheckpoints, restore
from .scalars import reduce_scalars
from .status import RankStatus, on_every_rank
from .topology import Topology, init, shutdown

__all__ = [
    "init",
    "shutdown",
    "Topology",
    "data_parallel",
    "init_in_parts",
    "shard",
    "sum_over_ranks",
    "SharedCheckpoints",
    "restore",
    "restore_in_parts",
    "SameState",
    "check_same_state",
    "check_same_text",
    "reduce_scalars",
    "RankStatus",
    "on_every_rank",
    "collective_order_checked",
]
