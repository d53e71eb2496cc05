"""Data sets that spawned processes can import: numbers, and ones that fail or die at a number."""

import os
import signal
import time

import torch


class Numbers:
    fingerprint = "numbers"

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"id": torch.tensor(index), "x": torch.full((2,), float(index))}


class Broken(Numbers):
    def __getitem__(self, index):
        if index == 13:
            raise RuntimeError("the disk is on fire")
        return super().__getitem__(index)


class Deadly(Numbers):
    def __getitem__(self, index):
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.002 * (index % 3))
        return super().__getitem__(index)
