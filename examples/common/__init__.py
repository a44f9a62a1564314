"""What the training examples share: arguments, data, engines, checkpoints, the loop and the report."""
