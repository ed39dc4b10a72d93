"""Evaluation of models: one loop over examples and processes, metrics, results by group, and paired bootstrap."""
