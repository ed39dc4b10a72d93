"""Proofs: the equivalences that users rely on, tested on the user's model in float64 with stated tolerances.

This package has the proof API and the proofs that tasks share; what only one task can prove lives in its package.
"""
