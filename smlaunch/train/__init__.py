"""What a training script may import: checkpoints, resumable data, the stop that all ranks agree on."""
