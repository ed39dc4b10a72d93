"""Readers of data files: lines of parallel text, tsv, csv, JSON, parquet, plain text, CoNLL, SQuAD and npz to tables.

kit reads files itself rather than with the builders of `datasets`, because of what they lack: every error names its
line, rows that cannot be decoded are counted instead of ending or entering the run, a cursor of lines and bytes resumes
a file in O(1), and the order of rows never depends on the number of processes.
"""
