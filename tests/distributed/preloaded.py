"""What every rank needs, imported once before the ranks are forked."""

import torch._functorch.aot_autograd
import torch.distributed  # noqa: F401

import purestep as ps

ps.Training, ps.fit, ps.distributed, ps.adamw, ps.MSELoss, ps.Checkpointer, ps.compile  # noqa: B018 - loads the modules
