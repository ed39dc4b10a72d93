"""Runs, adapters and data on the Hub: what goes there, the proof that it works there, and how it gets there."""
