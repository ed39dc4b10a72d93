"""Data: splits with the columns of a task, and an account of every row from the source to training.

Sources are read by `formats`, `builtin` or `datasets`; `text` tokenizes, `batching` and `streaming` plan the steps.
"""
