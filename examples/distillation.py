"""Distil a large classifier into a small one: two models in one step, the teacher frozen, its predictions the targets.

The teacher saw two hundred labelled points of two interleaved spirals; the student sees no label at all, but the teacher's
probabilities at any number of points. What is frozen has no optimizer state, keeps every bit, and no graph is kept for it.
"""

import math

import torch
from torch import nn

import purestep as ps


def spirals(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Points of two arms, and which arm."""
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=gen)
    radius = torch.rand(count, generator=gen).sqrt()
    angle = 1.5 * math.pi * radius + math.pi * labels
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return {"x": points + 0.02 * torch.randn(count, 2, generator=gen), "labels": labels}


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


def train_teacher() -> nn.Module:
    """Train on labels, and put the weights back into the module."""
    teacher = network(64)
    training = ps.Training(
        teacher, loss=ps.CrossEntropyLoss(), optimizer=ps.adamw(1e-2), forward=lambda model, batch: {"logits": model(batch["x"])}
    )
    state = ps.fit(training, [spirals(200, seed=1)], num_steps=300).state
    teacher.load_state_dict(state.params)
    return teacher


def forward(models, batch):
    with torch.no_grad():
        wanted = models["teacher"](batch["x"]) / 2.0  # a temperature of 2 softens the probabilities
    return {"logits": models["student"](batch["x"]) / 2.0, "teacher": wanted.softmax(-1)}


def teachers_word(loss, predictions, batch, *, target_keys):
    """Targets from predictions instead of from the batch."""
    return {"labels": predictions["teacher"]}


def main() -> dict[str, float]:
    torch.manual_seed(0)
    models = {"teacher": train_teacher(), "student": network(16)}
    training = ps.Training(
        models,
        loss=ps.CrossEntropyLoss(),  # floating-point labels are probabilities
        optimizer=ps.adamw(1e-2),
        forward=forward,
        targets=teachers_word,
        trainable="student.*",
    )
    start = training.init()
    state = ps.fit(training, [spirals(256, seed) for seed in range(2, 12)], state=start, num_steps=400).state

    test = spirals(1000, seed=99)
    predictions, _ = training.evaluate(state, test)
    found = {
        "agreement": float((predictions["logits"].argmax(-1) == predictions["teacher"].argmax(-1)).double().mean()),
        "accuracy": float((predictions["logits"].argmax(-1) == test["labels"]).double().mean()),
        "teacher_unchanged": float(all(torch.equal(start.params["teacher"][name], p) for name, p in state.params["teacher"].items())),
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
