"""Figures of training curves, attention weights and predicted labels, written as PNG files.

The functions take plain values and know no task. They choose fonts by character, so that any script can be drawn, and
never import pyplot: no global state, and no display needed.
"""
