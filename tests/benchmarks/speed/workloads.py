"""What is trained: models, batches and losses in plain torch, the same for every variant."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEARNING_RATE, WEIGHT_DECAY, MAX_NORM, EMA_DECAY = 1e-3, 0.1, 1.0, 0.999

Run = Callable[[int], float]
"""`run(steps)` trains on and returns the last loss."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, batches and a loss; `steps` are run by each variant in each round."""

    name: str
    model: Callable[[], nn.Module]
    batches: Callable[[], list[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    steps: int
    accumulate: int = 1
    tolerance: float = 1e-3
    """Largest relative difference of the losses of two variants: float32, rounded in another order, over hundreds of steps."""


def endless(workload: Workload) -> Iterator[Any]:
    """The batches, over and over."""
    return itertools.cycle(workload.batches())


def on_device(batch: Any) -> Any:
    """The batch moved to the device as trainers do; it is there already."""
    if isinstance(batch, dict):
        return {name: x.to("cpu", non_blocking=True) for name, x in batch.items()}
    return tuple(x.to("cpu", non_blocking=True) for x in batch) if isinstance(batch, tuple) else batch.to("cpu")


def _seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


# --- a model so small that only overhead is left --------------------------------------------------------------------


def _tiny_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def _tiny_batches() -> list[tuple[Tensor, Tensor]]:
    gen = torch.Generator().manual_seed(1)
    x = [torch.randn(32, 8, generator=gen) for _ in range(8)]
    return [(part, part.sum(1, keepdim=True).sin()) for part in x]


def _regression(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


# --- a network of usual width ---------------------------------------------------------------------------------------


def _mlp_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))


def _mlp_batches() -> list[tuple[Tensor, Tensor]]:
    gen = torch.Generator().manual_seed(1)
    x = [torch.randn(64, 64, generator=gen) for _ in range(8)]
    return [(part, part[:, :8].sum(1, keepdim=True).sin()) for part in x]


# --- a character model ----------------------------------------------------------------------------------------------


class _Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class CharModel(nn.Module):
    """A decoder over characters."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def _char_model() -> nn.Module:
    return CharModel(layers=6, width=256, heads=8, vocabulary=65, length=128)


def text_batches(count: int, size: int, length: int) -> list[tuple[Tensor, Tensor]]:
    gen = torch.Generator().manual_seed(2)
    text = torch.randint(0, 65, (count, size, length + 1), generator=gen)
    return [(part[:, :-1], part[:, 1:]) for part in text]


def next_character(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


# --- energies and forces of the shipped molecules -------------------------------------------------------------------


def _molecule_batches() -> list[Any]:
    from purestep.data import Loader, PreparedFrames, collate, plan_padding, shipped

    store = shipped("g2")
    frames = PreparedFrames(store.split("train"), 5.0, reference_energies=store.reference_energies)
    loader = Loader(frames, 32, collate=partial(collate, pad_to=max(plan_padding(frames, 32, num_sizes=1), key=lambda size: size.atoms)))
    return [loader.batch(0, i) for i in range(8)]


def _potential(name: str) -> nn.Module:
    from purestep import models

    return getattr(models, name)(hidden_size=40, num_layers=3, num_radial=20, cutoff=5.0, max_number=20)


def _energy_and_forces(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch)
    per_atom = (out["energy"] - batch.energy)[:, 0] / batch.num_nodes_per_graph.clamp(min=1)
    energy = torch.where(batch.graph_mask, per_atom.square(), 0.0).sum() / batch.graph_mask.sum()
    forces = torch.where(batch.atom_mask[:, None], (out["forces"] - batch.forces).square(), 0.0).sum() / (3 * batch.atom_mask.sum())
    return energy + 10.0 * forces


# --- many small leaves ----------------------------------------------------------------------------------------------


class _ManyLeaves(nn.Module):
    """300 parameters, each read once: nearly all of the time is the update."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = nn.ParameterList([torch.randn(64, 32) * 0.1 for _ in range(300)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([(leaf * x).sum() for leaf in self.leaves]).square().mean()


def _plain(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0])


# --- an existing potential as it comes ------------------------------------------------------------------------------


def _mace_model() -> nn.Module:
    from tests.potentials.mace_training import make_model

    return make_model()


def _mace_batches() -> list[dict[str, Tensor]]:
    from tests.potentials.mace_training import make_batches

    return make_batches(8)


def _mace_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    from tests.potentials.mace_training import energy_and_force_loss

    return energy_and_force_loss(model, batch)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("tiny", partial(_seeded, _tiny_model), _tiny_batches, _regression, steps=300),
        Workload("mlp", partial(_seeded, _mlp_model), _mlp_batches, _regression, steps=50),
        Workload(
            "lm", partial(_seeded, partial(CharModel, 6, 256, 8, 65, 128)), partial(text_batches, 4, 16, 128), next_character, steps=1
        ),
        Workload("schnet", partial(_seeded, partial(_potential, "SchNet")), _molecule_batches, _energy_and_forces, steps=4),
        Workload("painn", partial(_seeded, partial(_potential, "PaiNN")), _molecule_batches, _energy_and_forces, steps=4),
        Workload("leaves", partial(_seeded, _ManyLeaves), lambda: [(torch.ones(32),)], _plain, steps=20),
        Workload("accumulate", partial(_seeded, _tiny_model), _tiny_batches, _regression, steps=320, accumulate=8),
        Workload("mace", _mace_model, _mace_batches, _mace_loss, steps=4),
    )
}
