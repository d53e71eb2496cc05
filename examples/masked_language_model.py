"""Train a masked language model on sentences of different lengths, where each token counts once, wherever it stands.

Lengths are padded to a few sizes, so that a compiled step is captured a few times only. A loss is a sum of tokens divided by their
number over the whole batch: padding, short sentences and the cut into microbatches change nothing. Which tokens are hidden is drawn by
a hook inside the step, from a key: anew in every batch, and the same again after a restart.
"""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import purestep as ps

WORDS = "<pad> <mask> . the a small old red cat dog bird fox sees hears follows near behind tree house river".split()
PAD, MASK = 0, 1
KINDS = {"article": (3, 4), "adjective": (5, 6, 7), "noun": (8, 9, 10, 11), "verb": (12, 13, 14), "place": (15, 16), "thing": (17, 18, 19)}
SIZES = (8, 12, 16)


def sentence(gen: torch.Generator) -> list[int]:
    """Article, adjectives, noun, verb, article, adjectives, noun; sometimes a place."""
    pick = lambda kind: KINDS[kind][int(torch.randint(len(KINDS[kind]), (), generator=gen))]  # noqa: E731
    some = lambda: [pick("adjective") for _ in range(int(torch.randint(3, (), generator=gen)))]  # noqa: E731
    tokens = [pick("article"), *some(), pick("noun"), pick("verb"), pick("article"), *some(), pick("noun")]
    if torch.rand((), generator=gen) < 0.5:
        tokens += [pick("place"), pick("article"), *some(), pick("thing")]
    return [*tokens, 2]


def padded(sentences: list[list[int]], mask: np.ndarray | None = None) -> dict[str, Tensor]:
    """One batch, the `collate` of a Loader; `mask` is False for sentences that only fill it up.

    `hidden` says which tokens the model must guess. Here every fourth: the hook chooses anew in training.
    """
    longest = max(map(len, sentences))
    size = next(size for size in SIZES if size >= longest)
    tokens = torch.tensor([words + [PAD] * (size - len(words)) for words in sentences])
    row, column = torch.arange(len(tokens)).unsqueeze(1), torch.arange(size)
    tokens = tokens if mask is None else torch.where(torch.from_numpy(mask).unsqueeze(1), tokens, PAD)
    return {"tokens": tokens, "hidden": (tokens != PAD) & ((row + column) % 4 == 0)}


class Encoder(nn.Module):
    """One layer of attention in which nobody looks at padding."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(SIZES[-1], width)
        self.attend, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, len(WORDS))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits of every token."""
        tokens = torch.where(batch["hidden"], MASK, batch["tokens"])
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        q, k, v = self.attend(self.norm(x)).unflatten(-1, (3, 2, -1)).movedim(-3, 0).transpose(-2, -3).unbind()
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=(batch["tokens"] != PAD)[:, None, None, :])
        x = x + self.merge(attended.transpose(-2, -3).flatten(-2))
        return {"logits": self.out(x + self.think(x))}


def hide_words(fraction: float) -> ps.Hook:
    """Choose the tokens to guess, before the forward pass; evaluation keeps those of the batch."""

    def init(state: ps.TrainState) -> Tensor:
        return torch.zeros_like(state.seed)  # draws so far, so that the parts of a cut batch differ

    def update(draws: Tensor, ctx: ps.StepContext) -> tuple[Tensor, ps.StepContext]:
        key = ps.fold_in(ctx.seed, ctx.counters.batch_count, purpose=ps.rng.HOOKS)
        chosen = ps.rng.uniform(key, draws, ctx.batch["tokens"].shape) < fraction
        return draws + 1, ctx.replace(batch={**ctx.batch, "hidden": (ctx.batch["tokens"] != PAD) & chosen})

    return ps.Hook("hide_words", frozenset({ps.Stage.BEFORE_FORWARD}), init, update)


def main() -> dict[str, float]:
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    sentences = sorted((sentence(gen) for _ in range(320)), key=len)  # similar lengths together: less padding
    data = ps.Loader(sentences, 32, shuffle=False, collate=padded)
    held_out = [padded([sentence(gen) for _ in range(size)]) for size in (32, 7, 1)]
    loss = ps.CrossEntropyLoss(target_key="tokens", mask_key="hidden")
    training = ps.Training(Encoder(), loss=loss, optimizer=ps.adamw(3e-3), hooks=(hide_words(0.2), ps.hooks.ema(0.98)))
    perplexity = ps.metrics.Perplexity(target_key="tokens", mask_key="hidden")
    state = ps.fit(training, data, num_steps=250).state

    summary = ps.validate(training, state, ps.Validation(held_out, metrics=(perplexity,)))
    plain = training.replace(hooks=(ps.hooks.ema(0.98),))  # hides the same words in both
    first = data.batch(0, 0)
    whole, parts = (
        tr.step(dataclasses.replace(state, hook_state=plain.init().hook_state), first)[1] for tr in (plain, plain.replace(microbatches=4))
    )
    found = {
        "perplexity": summary["perplexity"],
        "sizes": float(len({batch["tokens"].shape[1] for batch in data})),
        "cutting_changes": float(abs(whole["update/grad_norm"] - parts["update/grad_norm"]) / whole["update/grad_norm"]),
    }
    print("  ".join(f"{name} {value:.3g}" for name, value in found.items()), f"  (chance: {len(WORDS)})")
    return found


if __name__ == "__main__":
    main()
