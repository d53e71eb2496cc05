"""What must hold on a CUDA device, one function each: raises where it does not hold, returns a line that says what was found.

Each runs on a CPU too as far as it can, which rehearses the script; what only a device can show is then said to be skipped.
"""

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import purestep as ps
from purestep.distributed.collective import sum_over
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.benchmarks.speed.workloads import CharModel, Workload, next_character, text_batches
from tests.examples_of_models import batches, mean_squared_error, run, training


class Skipped(Exception):
    """Nothing was checked, for a reason."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where the checks run, what compiles, and how large the timed model is."""

    device: str
    backend: str
    layers: int
    width: int
    rounds: int

    @property
    def has_cuda(self) -> bool:
        return self.device == "cuda"


CUDA = Machine("cuda", "inductor", layers=6, width=512, rounds=15)
REHEARSAL = Machine("cpu", "eager", layers=1, width=32, rounds=2)


def _guarded() -> Any:
    return training(optimizer=ps.chain(ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adamw(1e-2)), hooks=[ps.hooks.ema(0.9)])


def _on(machine: Machine, data: list[Any]) -> list[Any]:
    return [ps.tree.to_device(batch, machine.device) for batch in data]


def _compiled(machine: Machine, step: Any, **options: Any) -> Any:
    return ps.compile(step, backend=machine.backend, on_recompile="error", **options)


def never_waits(machine: Machine) -> str:
    """A donated step does not wait for the device."""
    tr, data = _guarded(), _on(machine, batches(4))
    step = _compiled(machine, tr.step, donate=True)
    state, _ = run(step, tr.init(device=machine.device), data[:2])
    assert step.explain()[0].host_reads == ()
    if not machine.has_cuda:
        raise Skipped("needs CUDA to see waits; the graph reads nothing")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(step, state, data[2:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no wait in two steps"


def replayed_as_a_cuda_graph(machine: Machine) -> str:
    """`mode="reduce-overhead"` records a donated step once for each size of batch, and replays it, without a wait, with its numbers."""
    tr, sizes = _guarded(), (8, 8, 8, 4, 4, 8, 4, 8)
    data = _on(machine, [batches(1, size, seed=number)[0] for number, size in enumerate(sizes)])
    step = _compiled(machine, tr.step, donate=True, mode="reduce-overhead", max_captures=2)
    state, _ = run(step, tr.init(device=machine.device), data[:5])
    before = [leaf.data_ptr() for leaf in ps.tree.leaves(state)]
    if machine.has_cuda:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        state, metrics = step(state, data[5])
        kept = ps.tree.clone(metrics)
        state, _ = run(step, state, data[6:])
    finally:
        if machine.has_cuda:
            torch.cuda.set_sync_debug_mode("default")
    assert [leaf.data_ptr() for leaf in ps.tree.leaves(state)] == before
    assert_trees_equal(metrics, kept)
    expected, _ = run(tr.step, tr.init(device=machine.device), data)
    assert_trees_close(state, expected, rtol=1e-10, atol=1e-10)  # float64, kernels sum in another order
    notes = {record.replay for record in step.explain()}
    if not machine.has_cuda:
        raise Skipped(f"needs CUDA; {len(sizes)} steps of 2 sizes are right, {notes.pop()}")
    assert notes == {"replayed as a CUDA graph"}
    return f"{len(sizes)} steps of 2 sizes"


def half_precision(machine: Machine) -> str:
    """Under bf16 the loss is that of float32 to 2 digits, and parameters stay float32."""
    losses = {}
    for precision in ("float32", "bf16"):
        loss = mean_squared_error(dtype_policy="prediction_to_target")
        tr = training(loss=loss, **({} if precision == "float32" else {"precision": "bf16"}))
        state = ps.tree.map(lambda leaf: leaf.float() if leaf.is_floating_point() and leaf.ndim else leaf, tr.init(device=machine.device))
        state, metrics = _compiled(machine, tr.step)(state, ps.tree.cast(_on(machine, batches(1))[0], torch.float32))
        assert {leaf.dtype for leaf in ps.tree.leaves(state.params)} == {torch.float32}
        losses[precision] = float(metrics["loss/total"])
    assert abs(losses["bf16"] / losses["float32"] - 1) < 0.02  # bf16 has 8 bits
    return f"loss {losses['bf16']:.4f}, in float32 {losses['float32']:.4f}"


def _char_workload(machine: Machine) -> Workload:
    model = lambda: CharModel(machine.layers, machine.width, 8, 65, 128).to(machine.device)  # noqa: E731
    return Workload("char", model, lambda: _on(machine, text_batches(4, 16, 128)), next_character, steps=10)


def _char_training(workload: Workload, **changes: Any) -> ps.Training:
    torch.manual_seed(0)
    return ps.Training(
        workload.model(),
        loss=lambda predictions, batch: predictions["loss"],
        forward=lambda model, batch: {"loss": workload.loss(model, batch)},
        optimizer=ps.adamw(1e-3),
        **changes,
    )


def keeps_fused_attention(machine: Machine) -> str:
    """The captured step calls a fused attention, forward and backward."""
    workload = _char_workload(machine)
    tr, data = _char_training(workload, precision="bf16"), workload.batches()
    step = _compiled(machine, tr.step)
    state, _ = step(tr.init(device=machine.device), data[0])
    with torch.profiler.profile() as profile:
        step(state, data[1])
    found = {event.key for event in profile.key_averages() if "scaled_dot_product_" in event.key and "math" not in event.key}
    assert any("backward" in name for name in found), f"no fused attention: {found}"
    return ", ".join(sorted(name.removeprefix("aten::") for name in found))


def leaves_tf32_alone(machine: Machine) -> str:
    """Compiling and training change no setting of float32 products."""
    settings = lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)  # noqa: E731
    before, tr = settings(), training()
    _compiled(machine, tr.step)(tr.init(device=machine.device), _on(machine, batches(1))[0])
    assert settings() == before
    return f"still {before[0]}, cudnn {before[1]}"


def _of_compiled_model(machine: Machine, workload: Workload) -> Callable[[int], None]:
    torch.manual_seed(0)
    model, data = workload.model(), workload.batches()
    called = torch.compile(model, backend=machine.backend)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)

    def advance(steps: int) -> None:
        for number in range(steps):
            workload.loss(called, data[number % len(data)]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return advance


def _of_step(machine: Machine, workload: Workload, **options: Any) -> Callable[[int], None]:
    tr, data = _char_training(workload), workload.batches()
    step, state = _compiled(machine, tr.step, donate=True, **options), tr.init(device=machine.device)

    def advance(steps: int) -> None:
        nonlocal state
        for number in range(steps):
            state, _ = step(state, data[number % len(data)])

    return advance


def _measured(machine: Machine, advance: Callable[[int], None], steps: int) -> tuple[float, int]:
    """Seconds, and the most bytes that lay on the device."""
    if not machine.has_cuda:
        began = time.process_time()
        advance(steps)
        return time.process_time() - began, 1
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    advance(steps)
    torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated()


def time_and_memory(machine: Machine) -> str:
    """A donated step, launched and replayed, beside the compiled model with the fused optimizer: ratios, reported and not judged."""
    workload, ratios, peaks = _char_workload(machine), {}, {}
    replayed = functools.partial(_of_step, mode="reduce-overhead")
    # one after the other, so that peaks are of one alone
    for name, make in (("model", _of_compiled_model), ("step", _of_step), ("replayed", replayed)):
        advance = make(machine, workload)
        advance(3)
        rows = [_measured(machine, advance, workload.steps if machine.has_cuda else 1) for _ in range(machine.rounds)]
        ratios[name], peaks[name] = statistics.median(seconds for seconds, _ in rows), max(peak for _, peak in rows)
        del advance
    time_taken = ", ".join(f"{name} {ratios[name] / ratios['model']:.3f}" for name in ("step", "replayed"))
    memory = ", ".join(f"{name} {peaks[name] / peaks['model']:.3f}" for name in ("step", "replayed")) if machine.has_cuda else "needs CUDA"
    return f"of the compiled model with fused AdamW: time of {time_taken}; peak memory of {memory}"


class _Samples:
    """A data set that can be indexed."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index), dtype=torch.float64)}


def copies_from_pinned_memory(machine: Machine) -> str:
    """Batches of a loader come in pinned memory, and travel without a wait."""
    loader = ps.Loader(_Samples(), 8, seed=1, collate=lambda samples, mask: {"x": torch.stack([one["x"] for one in samples])})
    with ps.data.Prefetched(loader, memory="pinned" if machine.has_cuda else "pageable") as ahead:
        for mine, plain in zip(ahead, loader, strict=True):
            if machine.has_cuda:
                assert mine["x"].is_pinned()
                torch.cuda.set_sync_debug_mode("error")
            moved = ps.tree.to_device(mine, machine.device, non_blocking=True)
            if machine.has_cuda:
                torch.cuda.set_sync_debug_mode("default")
            assert_trees_equal(ps.tree.to_device(moved, "cpu"), plain)
    if not machine.has_cuda:
        raise Skipped("needs CUDA; pageable batches are right")
    return "4 batches"


def resumes_bitwise(machine: Machine) -> str:
    """With deterministic algorithms a run that is saved and loaded half-way ends with the bits of the one in a piece."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        tr, data = _guarded(), _on(machine, batches(6))
        step = _compiled(machine, tr.step)
        whole, _ = run(step, tr.init(device=machine.device), data)
        half, _ = run(step, tr.init(device=machine.device), data[:3])
        with tempfile.TemporaryDirectory() as folder:
            loaded = ps.load(ps.save(f"{folder}/half", half), like=tr.init(device=machine.device))
        assert_trees_equal(run(step, loaded, data[3:])[0], whole)
    finally:
        torch.use_deterministic_algorithms(False)
    return "the bits of the run in a piece"


def sums_in_a_world_of_one(machine: Machine) -> str:
    """A captured sum over ranks goes through NCCL (gloo on a CPU)."""
    backend = "nccl" if machine.has_cuda else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            x = torch.arange(5.0, device=machine.device)
            total = _compiled(machine, lambda x: 2 * sum_over(x + 1, world_size=1))(x)
        finally:
            dist.destroy_process_group()
    assert torch.equal(total, 2 * (x + 1))
    if not machine.has_cuda:
        raise Skipped("needs CUDA; gloo sums rightly")
    return backend


CHECKS: dict[str, Callable[[Machine], str]] = {
    check.__name__: check
    for check in (
        never_waits,
        replayed_as_a_cuda_graph,
        half_precision,
        keeps_fused_attention,
        leaves_tf32_alone,
        copies_from_pinned_memory,
        resumes_bitwise,
        sums_in_a_world_of_one,
        time_and_memory,
    )
}
