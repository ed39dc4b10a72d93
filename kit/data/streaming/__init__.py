"""Training data that is streamed rather than held in memory, in an order that depends only on the seed and the epoch.

`IterableDataset` shuffles within a buffer that forgets its rows when a run stops, and gives each process other shards.
kit's order is its own, so that a resumed run sees exactly the rows it would have seen, after reading one buffer again,
and so that the steps are the same for any number of processes.
"""
