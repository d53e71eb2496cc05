"""What all tests share: one thread, names for the doctests, no network, and a guard of the global state."""

import logging
import random
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

import purestep as ps

TESTS = Path(__file__).parent / "tests"
LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", ""}


def pytest_configure() -> None:
    """Use one thread: spinning threads of several processes on a shared machine are slower."""
    torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Look for doctests in the package only: what lies beside the tests may need libraries that they do not."""
    is_beside_tests = (
        collection_path.suffix == ".py" and collection_path.is_relative_to(TESTS) and not collection_path.name.startswith("test_")
    )
    return True if is_beside_tests else None


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace) -> None:
    """Give every doctest the two names that a user has imported."""
    doctest_namespace.update(torch=torch, ps=ps)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave this machine; ranks of one test may still talk to each other."""
    connect = socket.socket.connect

    def connect_locally(self, address):
        if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] not in LOCAL_HOSTS:
            raise ConnectionRefusedError(f"tests must not use the network, got a connection to {address[0]}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_locally)


@pytest.fixture
def restored_settings():
    """Put back what a run sets for its own process, where that is the one of the tests."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def _global_state() -> dict[str, object]:
    root = logging.getLogger()
    kind, keys, *rest = np.random.get_state()
    return {
        "torch generator": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy.random": (kind, keys.tolist(), *rest),
        "root logger": (root.level, list(root.handlers), list(root.filters)),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
    }


@pytest.fixture
def untouched_globals():
    """Fail if the test leaves the global generators, the root logger or torch's modes other than it found them."""
    before = _global_state()
    yield
    after = _global_state()
    changed = [name for name, value in before.items() if after[name] != value]
    assert not changed, f"changed by the test: {', '.join(changed)}"
