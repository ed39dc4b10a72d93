"""Decoding: generation settings, greedy and beam search, and hypotheses with their scores.

The beam search is kit's because that of transformers repeats the source for every beam, sorts the whole vocabulary and
keeps finished sentences in the batch; this one avoids all three and returns the same hypotheses and scores.
"""
