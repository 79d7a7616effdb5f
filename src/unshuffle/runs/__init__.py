"""Reading run folders: config, metrics, states and checkpoints, without models or training."""
