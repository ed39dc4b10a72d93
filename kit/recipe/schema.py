"""The JSON schema of recipes, for validation and completion in editors."""

from typing import Any

from kit.models import MODELS
from kit.recipe import model_settings
from kit.recipe.base import Recipe
from kit.recipe.keys import Recipes


def recipe_schema(recipes: Recipes) -> dict[str, Any]:
    """The JSON schema of recipes, including the settings of kit's model types."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kit recipe",
        "type": "object",
        "properties": {"task": {"enum": [*recipes], "description": Recipe.model_fields["task"].description}},
        "required": ["task"],
        "allOf": [],
        "$defs": {},
    }
    for task, kind in recipes.items():
        task_schema = kind.model_json_schema()
        schema["$defs"] |= task_schema.pop("$defs")
        condition = {"properties": {"task": {"const": task}}, "required": ["task"]}
        schema["allOf"].append({"if": condition, "then": task_schema})
    model = schema["$defs"]["ModelSection"]
    model["properties"]["type"] = {**model["properties"]["type"], "examples": [*MODELS]}
    model["allOf"] = []
    for model_type in MODELS:
        settings = model_settings.settings_model(model_settings.config_class(model_type)).model_json_schema()
        schema["$defs"] |= settings.pop("$defs", {})
        model["allOf"].append(
            {
                "if": {"properties": {"type": {"const": model_type}}, "required": ["type"]},
                "then": {
                    "properties": {"type": {}, "pretrained": {}, **settings["properties"]},
                    "additionalProperties": False,
                },
            }
        )
    return schema
