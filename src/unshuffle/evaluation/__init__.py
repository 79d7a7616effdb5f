"""What the learned features are worth."""
