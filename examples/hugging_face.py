"""Train a model of Hugging Face's `transformers` as it is, and give its weights back to it.

The model is a small GPT-2 with random weights; nothing is downloaded. Its module is never touched: a step reads parameters from the state.
The embedding and the output share one matrix, which is one leaf of the state, and both names are in the exported file. The whole of a
step, dropout included, is one graph. What is exported, `from_pretrained` reads.
"""

import json
import tempfile

import torch
from torch import Tensor

import purestep as ps

WORDS = 12
LENGTH = 16


def batches(count: int) -> list[dict[str, Tensor]]:
    """Sequences in which each token is the one before plus a step of the sequence's own; the first two tokens tell it."""
    gen = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        first, step = torch.randint(WORDS, (32, 1), generator=gen), torch.randint(1, 4, (32, 1), generator=gen)
        found.append({"tokens": (first + step * torch.arange(LENGTH)) % WORDS})
    return found


def forward(model: torch.nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits of each next token, `(32, LENGTH - 1, WORDS)`."""
    return {"logits": model(input_ids=batch["tokens"], use_cache=False).logits[:, :-1]}


def targets(loss: object, predictions: object, batch: dict[str, Tensor], *, target_keys: object) -> dict[str, Tensor]:
    """The tokens that come next."""
    return {"next": batch["tokens"][:, 1:]}


def main() -> dict[str, float | bool | int]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    training = ps.Training(
        model,
        loss=ps.CrossEntropyLoss(prediction_key="logits", target_key="next"),
        optimizer=ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(3e-3)),
        forward=forward,
        targets=targets,
    )
    data = batches(40)
    step = ps.compile(training.step, backend="eager")
    result = ps.fit(training, data, num_epochs=5, step=step)
    with tempfile.TemporaryDirectory() as folder:
        ps.save(f"{folder}/checkpoint", result.state)
        ps.checkpoint.export(f"{folder}/checkpoint", f"{folder}/exported", config=json.loads(model.config.to_json_string()))
        theirs = GPT2LMHeadModel.from_pretrained(f"{folder}/exported").eval()
    batch = data[0]
    with torch.no_grad():
        logits = theirs(input_ids=batch["tokens"]).logits[:, :-1]
    ours, _ = training.evaluate(result.state, batch)
    found = {
        "loss": float(result.history[-1]["loss/total"]),
        "graphs": len(step.explain()),
        "tied_is_one_leaf": "lm_head.weight" in dict(result.state.aliases) and "lm_head.weight" not in result.state.params,
        "difference": float((logits - ours["logits"]).abs().max()),
    }
    print(f"loss {found['loss']:.3f} nat of {torch.tensor(float(WORDS)).log():.3f}; {found['graphs']} graph")
    print(f"logits of the exported model differ by at most {found['difference']:.1e}")
    return found


if __name__ == "__main__":
    main()
