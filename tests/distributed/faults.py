"""What ranks do in the tests of faults and decisions; each function runs on every rank."""

import os
import signal
import time
import warnings

import torch
from torch import nn

import purestep as ps
from purestep.core import tree
from tests.distributed import scenarios


class Product(nn.Module):
    """`y = w x` with `w = 1`."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, batch):
        return {"y": self.w * batch["x"]}


class Dropped(nn.Module):
    """`y = w * dropout(x)`."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch):
        return {"y": self.w * self.dropout(batch["x"])}


def squares(topology, batches, microbatches=1, optimizer=None, module=Product):
    """Metrics of steps that lower the mean of `(w x)^2`."""
    loss = ps.MSELoss(prediction_key="y", target_key="zero", name="squares")
    own = ps.Training(module(), loss=loss, optimizer=optimizer or ps.sgd(0.0), microbatches=microbatches)
    shared = ps.distributed.data_parallel(own, topology)
    return scenarios.run_steps(shared.step, shared.init(), batches)


def values(*numbers):
    x = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 1)
    return {"x": x, "zero": torch.zeros_like(x)}


def shares_of_four_numbers(topology):
    """Loss and gradient norm of 1, 2, 3, 4 for several ways to share them between two ranks."""
    first = topology.rank == 0
    ways = {
        "3 and 1": (values(1, 2, 3) if first else values(4), 1),
        "all and none": (values(1, 2, 3, 4) if first else values(), 1),
        "two parts each, one empty": ((values(1, 2), values(3)) if first else (values(), values(4)), 2),
    }
    found = {}
    for name, (batch, parts) in ways.items():
        _, (metrics,) = squares(topology, [batch], parts)
        found[name] = (float(metrics["loss/total"]), float(metrics["update/grad_norm"]))
    return found


CHAINS = {
    "gate before a window": lambda: (ps.skip_nonfinite(), ps.accumulate(2), ps.adamw(0.1)),
    "gate without a window": lambda: (ps.skip_nonfinite(), ps.adamw(0.1)),
    "loss scale before a window": lambda: (ps.dynamic_loss_scale(), ps.skip_nonfinite(), ps.accumulate(2), ps.adamw(0.1)),
    "gate after a window": lambda: (ps.accumulate(2), ps.skip_nonfinite(), ps.adamw(0.1)),
    "gate inside a chain": lambda: (ps.chain(ps.skip_nonfinite(), ps.accumulate(2), name="window"), ps.adamw(0.1)),
}


def nan_on_rank_one(topology, name):
    """Six steps, the third of which has a NaN in the input on rank 1 only."""
    batches = [values(1.0 + step, 2.0) for step in range(6)]
    if topology.rank == 1:
        batches[2] = values(float("nan"), 2.0)
    state, metrics = squares(topology, batches, optimizer=ps.chain(*CHAINS[name]()))
    return dict(tree.items(state)), [float(m["update/applied"]) for m in metrics]


def dropout_masks(topology):
    """Which of 1000 inputs are dropped, at two steps."""
    seen = []

    def look(state, ctx):
        seen.append(ctx.predictions["y"].detach() != 0)
        return state, ctx

    hook = ps.Hook("look", frozenset({ps.Stage.AFTER_FORWARD}), lambda state: {}, look)
    loss = ps.MSELoss(prediction_key="y", target_key="zero")
    shared = ps.distributed.data_parallel(ps.Training(Dropped(), loss=loss, optimizer=ps.sgd(0.0), hooks=(hook,)), topology)
    batch = {"x": torch.ones(1, 1000, dtype=torch.float64), "zero": torch.zeros(1, 1000, dtype=torch.float64)}
    state = shared.init()
    state, _ = shared.step(state, batch)
    shared.step(state, batch)
    shared.step(shared.init(), batch)
    return torch.stack(seen).reshape(3, -1)


def captured_at_different_times(topology):
    """Rank 1 meets a new batch size at the second step, rank 0 does not."""
    shared = ps.distributed.data_parallel(scenarios.training("gated"), topology)
    step = ps.compile(shared.step, backend="aot_eager", on_recompile="ignore")
    sizes = [4, 4, 4] if topology.rank == 0 else [4, 6, 4]
    batches = [scenarios.part(scenarios.samples(12, seed), 0, size) for seed, size in enumerate(sizes)]
    captured, _ = scenarios.run_steps(step, shared.init(), batches)
    eager, _ = scenarios.run_steps(shared.step, shared.init(), batches)
    return len(step.explain()), scenarios.plain(captured), scenarios.plain(eager)


# --- decisions of the loop ----------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    def __init__(self, number):
        self.fields = {"x": torch.arange(1.0, number + 1, dtype=torch.float64).reshape(-1, 1)}
        self.fields["zero"] = torch.zeros_like(self.fields["x"])

    def __len__(self):
        return len(self.fields["x"])

    def __getitem__(self, index):
        return {name: field[index] for name, field in self.fields.items()}


def run_of_squares(topology, batches, **options):
    loss = ps.MSELoss(prediction_key="y", target_key="zero", mask_key="mask", name="squares")
    own = ps.Training(Product(), loss=loss, optimizer=options.pop("optimizer", ps.sgd(0.001)))
    return ps.fit(ps.distributed.data_parallel(own, topology), batches, **options)


def masked(*numbers):
    batch = values(*numbers)
    return {**batch, "mask": torch.ones(len(numbers), dtype=torch.bool)}


def epochs_over_a_loader(topology, number, batch_size):
    loader = ps.distributed.shard(ps.Loader(Rows(number), batch_size, seed=5), topology)
    result = run_of_squares(topology, loader, num_epochs=2)
    seen = [loader.indices(epoch, index) for epoch in range(2) for index in range(len(loader))]
    return dict(tree.items(result.state)), [samples[real].tolist() for samples, real in seen], result.stop_reason


def unequal_lists(topology):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run_of_squares(topology, [masked(1.0)] * (5 if topology.rank == 0 else 4), num_epochs=2)
    return int(result.state.counters.batch_count), [str(warning.message) for warning in caught]


class Signalled:
    """Stops the run at the third batch, on rank 1 only, through a real SIGTERM."""

    on_every_rank = True

    def __init__(self, topology, stop):
        self.topology, self.stop = topology, stop

    def __call__(self, event):
        if self.topology.rank == 1 and event.stage is ps.Stage.AFTER_BATCH and event.batch_count == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.stop(event)


def stopped_by_a_signal_on_rank_one(topology):
    from purestep.reporting.signals import StopOnSignal

    with StopOnSignal() as stop:
        result = run_of_squares(topology, [masked(1.0)] * 10, num_epochs=1, listeners=[Signalled(topology, stop)])
    return result.stop_reason, int(result.state.counters.batch_count)


def heard_by(topology):
    heard, everywhere = [], []
    listeners = [lambda event: heard.append(event.stage), ps.distributed.on_every_rank(lambda event: everywhere.append(event.stage))]
    run_of_squares(topology, [masked(1.0)], num_epochs=1, listeners=listeners)
    return len(heard), len(everywhere)


def full_disk(event):
    if event.stage is ps.Stage.AFTER_BATCH and event.batch_count == 2:
        raise OSError("no space left on device")


def error_in_a_listener(topology):
    run_of_squares(topology, [masked(1.0)] * 4, num_epochs=1, listeners=[full_disk])


class UnreadableOnRankOne:
    def __init__(self, topology):
        self.topology = topology

    def epoch(self, number, start):
        yield masked(1.0)
        if self.topology.rank == 1:
            raise OSError("the store is gone")
        yield masked(1.0)


class Told:
    """Remembers the errors that it is told of, and where the run stood."""

    hears_errors = True

    def __init__(self):
        self.heard = []

    def __call__(self, event):
        if event.error is not None:
            self.heard.append((type(event.error).__name__, event.batch_count))


def error_in_the_data(topology):
    """Raises with what listeners for every rank, and for one process, were told."""
    everywhere, alone = Told(), Told()
    try:
        run_of_squares(topology, UnreadableOnRankOne(topology), num_epochs=1, listeners=[ps.distributed.on_every_rank(everywhere), alone])
    except Exception as error:
        raise type(error)(f"{error}; told of {everywhere.heard}, alone {alone.heard}") from error


def validated(topology, total, batch_size):
    """Mean over samples of which one has the value 10 and the others 0, each rank having its part of them."""
    numbers = [10.0**0.5] + [0.0] * (total - 1)
    own = numbers[topology.rank :: topology.world_size]
    batches = [masked(*own[i : i + batch_size]) for i in range(0, len(own), batch_size)]
    result = run_of_squares(topology, [masked(1.0)], num_epochs=1, optimizer=ps.sgd(0.0), validation=ps.Validation(batches))
    return result.history[-1]["validation/loss/total"]


def die_on_rank_one(topology):
    if topology.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class DyingData:
    """Batches during whose reading rank 1 dies."""

    def __init__(self, topology):
        self.topology = topology

    def epoch(self, number, start):
        yield masked(1.0)
        die_on_rank_one(self.topology)
        yield masked(1.0)


class SlowData:
    """Batches for the second of which rank 1 takes its time."""

    def __init__(self, topology, seconds):
        self.topology, self.seconds = topology, seconds

    def epoch(self, number, start):
        yield masked(1.0)
        time.sleep(self.seconds if self.topology.rank == 1 else 0.0)
        yield masked(1.0)


def slow(topology, seconds):
    """Rank 1 is slow; the parameter at the end."""
    state = run_of_squares(topology, SlowData(topology, seconds), num_epochs=1).state
    return state.params["w"].item()


def killed(topology, phase, folder):
    """Rank 1 is killed in a phase of the run; the others must hear of it."""
    batches, validation, listeners, optimizer = [masked(1.0)] * 4, None, (), ps.sgd(0.1)

    def die(*event, **about):
        die_on_rank_one(topology)

    die.on_every_rank = True
    if phase == "data":
        batches = DyingData(topology)
    elif phase == "step":
        optimizer = ps.chain(ps.stateless(lambda updates, params: die() or updates), ps.sgd(0.1))
    elif phase == "save":
        writer = lambda: ps.Checkpointer(os.path.join(folder, "checkpoints"))  # noqa: E731
        listeners = [ps.distributed.SharedCheckpoints(writer, topology, every_n_steps=2, write_part=die)]
    elif phase == "validation":
        validation = ps.Validation([masked(1.0)], batch_callback=die)
    else:
        listeners = [lambda event: die() if event.stage is ps.Stage.AFTER_EPOCH else None]
        listeners[0].on_every_rank = True
    with ps.distributed.RankStatus(folder, topology, every_seconds=0) as status:
        run_of_squares(topology, batches, num_epochs=1, listeners=[*listeners, status], validation=validation, optimizer=optimizer)
