"""What a training step would cost on a GPU, on paper: machines, and the kernels of eager's and of the engine's step."""
