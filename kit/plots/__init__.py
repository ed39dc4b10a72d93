"""Figures of training curves, attention weights and predicted labels, written as PNG files.

Functions here take plain values and know no task; they choose fonts per character, so that any script can be drawn.
"""
