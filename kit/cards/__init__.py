"""Model cards: the metadata, tables and Markdown that every card has, whatever the task.

The text itself comes from Jinja templates; functions here turn recipes and results into values that are safe to render.
"""
