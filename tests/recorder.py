"""A recorder on the CPU in the place of CUDA graphs: it keeps operations and addresses, and repeats them without running any Python."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from purestep.core import tree


def memory(x):
    return x.untyped_storage()._cdata


def _version(x):
    return None if x.is_inference() else x._version


class _Tape(TorchDispatchMode):
    """Notes each operation with the very tensors that it read and returned, and what they held before."""

    def __init__(self):
        super().__init__()
        self.operations, self.before, self.made = [], {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in tree.leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        for x in given:
            if memory(x) not in self.made:
                self.before.setdefault(id(x), (x, x.clone(), _version(x)))
        results = func(*args, **(kwargs or {}))
        returned = [x for x in tree.leaves(results) if isinstance(x, Tensor)]
        self.made |= {memory(x) for x in returned} - {memory(x) for x in given}
        new = [memory(x) not in {memory(y) for y in given} for x in returned]
        self.operations.append((func, args, kwargs or {}, returned, new))
        return results

    def roll_back(self):
        for x, old, version in self.before.values():
            if version is None or _version(x) != version:
                x.copy_(old)

    @torch.inference_mode()  # as a launch of kernels, it may write to whatever it was recorded with
    def repeat(self):
        for func, args, kwargs, returned, new in self.operations:
            again = [x for x in tree.leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
            for x, y, is_new in zip(returned, again, new, strict=True):
                if is_new:
                    x.copy_(y)


class CpuRecorder:
    """Records what `purestep.capture.replay.CudaGraphs` would record."""

    def __init__(self):
        self.recorded = 0

    def record(self, run):
        self.recorded += 1
        tape = _Tape()
        with tape:
            results = run()
        tape.roll_back()  # recording runs nothing
        return tape.repeat, results
