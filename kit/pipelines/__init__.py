"""The pipelines that transformers 5 removed, and one for dialogue.

Their files are saved with a model, so that it works with transformers alone: they import nothing else from kit.
"""
