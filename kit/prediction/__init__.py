"""Prediction: stream lines or rows of any number through a model, in order and in bounded memory.

`engine` reads a portion at a time, or what a pipe has so far, batches it by length, retries a failing batch in halves
and reports bad lines; a `Predictor` of a task encodes, predicts and formats.
"""
