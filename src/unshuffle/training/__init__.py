"""The training loop, the training step, checkpoints and logs."""
