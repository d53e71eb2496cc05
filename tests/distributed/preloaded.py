"""What every rank needs, imported once before the ranks are forked; to capture something imports what capturing needs."""

import torch
import torch.distributed

import purestep as ps

ps.Training, ps.fit, ps.distributed, ps.adamw, ps.MSELoss, ps.Checkpointer  # noqa: B018 - loads the modules
torch.set_num_threads(1)
ps.compile(torch.square, backend="aot_eager")(torch.ones(1))
