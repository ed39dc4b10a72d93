"""Model cards: the metadata, tables and Markdown that the cards of all tasks have in common.

The text comes from the Jinja templates in model_cards/, which extend base.md; the functions here turn recipes and
results into values that are safe to insert.
"""
