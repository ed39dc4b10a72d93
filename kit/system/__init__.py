"""The process and its machine: terminal output, atomic writes, guarded JSON reads, versions, hardware, redaction.

Everything above may import this package; it imports nothing of kit but the exceptions.
"""
