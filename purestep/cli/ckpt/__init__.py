"""The commands `purestep ckpt ...`: checkpoints that are listed, shown, verified and exported. None of them imports a model."""
