"""Training: objectives, the loop, optimizers, checkpoints, weight averaging, sharding and the launcher of processes.

Checkpoints use kit's format, safetensors and JSON by parameter name with checksums: Accelerate's `save_state` pickles
optimizer and random states, identifies them by position and process, and is not atomic.
"""
