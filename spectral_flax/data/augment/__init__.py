"""Training-time augmentation on the device: pure functions of (key, batch), for use inside jit."""
