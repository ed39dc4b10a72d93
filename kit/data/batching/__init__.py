"""Batches: which examples form which micro-batch of which step, packing into blocks, and the cache of tokenized text.

A `DataLoader` sampler would tie the order to the number of processes and to the steps before. A plan here is a pure
function of the seed and the step, so any process can compute any step, and resuming costs nothing.
"""
