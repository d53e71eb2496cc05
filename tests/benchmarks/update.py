"""Time of an eager adamw update over 300 leaves, next to `torch.optim.AdamW(foreach=True)` on the same leaves.

`python tests/benchmarks/update.py` prints one line per size of leaf: microseconds of both, and their ratio, which should stay below
1.5. Rounds alternate, so a busy machine slows both; the ratio is the median over rounds.
"""

import statistics
import time

import torch

import purestep as ps

LEAVES, ROUNDS, REPEATS = 300, 15, 5


def microseconds(call) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        call()
    return (time.perf_counter() - start) / REPEATS * 1e6


def compare(size: int) -> tuple[float, float, float]:
    """Median time of torch, of ours, and median ratio, for square leaves of this side."""
    params = {f"layer{i}": torch.randn(size, size) for i in range(LEAVES)}
    grads = {name: torch.randn(size, size) for name in params}
    theirs = [p.clone().requires_grad_() for p in params.values()]
    for p, g in zip(theirs, grads.values(), strict=True):
        p.grad = g.clone()
    torch_optimizer = torch.optim.AdamW(theirs, 1e-3, foreach=True)
    optimizer = ps.adamw(1e-3, weight_decay=1e-2)
    carried = [optimizer.init(params), params]

    def ours() -> None:
        updates, carried[0] = optimizer.update(grads, carried[0], carried[1])
        carried[1] = ps.apply_updates(carried[1], updates)

    torch_optimizer.step()
    ours()
    rounds = [(microseconds(torch_optimizer.step), microseconds(ours)) for _ in range(ROUNDS)]
    return (*(statistics.median(column) for column in zip(*rounds, strict=True)), statistics.median(b / a for a, b in rounds))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for size in (4, 16, 64, 256):
        theirs, ours, ratio = compare(size)
        print(f"{LEAVES} leaves of {size} x {size}: torch {theirs:8.0f} us, purestep {ours:8.0f} us, ratio {ratio:.2f}")
