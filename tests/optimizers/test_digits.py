"""The published rows of scikit-learn's "Compare stochastic learning strategies for MLPClassifier" on its digits, to six digits.

https://scikit-learn.org/stable/auto_examples/neural_networks/plot_mlp_training_curves.html: one hidden layer of 100, 15 epochs of
batches of 200, its initialisation and its order of samples (random_state 0), L2 term `alpha |W|^2 / (2 batch)` on weights.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import shuffle

from purestep.core.transform import apply_updates, chain
from purestep.optimizers import sgd
from purestep.transforms import scale_by_learning_rate, trace

# scikit-learn keeps the learning rate inside the velocity, so it stands before the trace
ROWS = {
    "constant learning rate": (lambda: sgd(0.2), 0.956038, 0.243802),
    "momentum": (lambda: chain(scale_by_learning_rate(0.2), trace(0.9)), 0.992766, 0.041297),
    "Nesterov's momentum": (lambda: chain(scale_by_learning_rate(0.2), trace(0.9, nesterov=True)), 0.993879, 0.042898),
}
ALPHA, BATCH, EPOCHS = 1e-4, 200, 15


def initial_params(random, sizes=(64, 100, 10)):
    params = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        bound = np.sqrt(6.0 / (fan_in + fan_out))
        params[f"weight{layer}"] = torch.from_numpy(random.uniform(-bound, bound, (fan_in, fan_out)))
        params[f"bias{layer}"] = torch.from_numpy(random.uniform(-bound, bound, fan_out))
    return params


def logits(params, images):
    return F.relu(images @ params["weight0"] + params["bias0"]) @ params["weight1"] + params["bias1"]


def loss(params, images, labels):
    penalty = sum((leaf**2).sum() for name, leaf in params.items() if name.startswith("weight"))
    return F.cross_entropy(logits(params, images), labels) + 0.5 * ALPHA * penalty / len(images)


def train(optimizer):
    """Accuracy on the training set, and mean loss over the last epoch."""
    data = load_digits()
    images, labels = torch.from_numpy(MinMaxScaler().fit_transform(data.data)), torch.from_numpy(data.target).long()
    random = np.random.RandomState(0)
    params, order = initial_params(random), np.arange(len(images))
    state, gradient = optimizer.init(params), torch.func.grad_and_value(loss)
    for _ in range(EPOCHS):
        order, total = shuffle(order, random_state=random), 0.0
        for start in range(0, len(order), BATCH):
            picked = torch.from_numpy(order[start : start + BATCH])
            grads, value = gradient(params, images[picked], labels[picked])
            updates, state = optimizer.update(grads, state, params)
            params, total = apply_updates(params, updates), total + float(value) * len(picked)
    score = (logits(params, images).argmax(1) == labels).double().mean()
    return float(score), total / len(order)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_digits_table_comes_out_to_six_digits(row):
    make, score, last_loss = ROWS[row]
    assert [round(number, 6) for number in train(make())] == [score, last_loss]
