"""What only the card of a forecaster says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cards.markdown import code
from kit.cards.tables import SPLITS, figures_of
from kit.system.files import read_json
from kit.tasks.forecasting.recipe import ForecastingRecipe


def of_forecasting(recipe: ForecastingRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a forecaster says."""
    figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
    config = run_folder / "model" / "config.json"
    sizes = read_json(config, "a model configuration") if config.is_file() else {}
    order = figures.get("linear_order")
    note = (
        f"Errors are in the units of the data, over all {recipe.data.horizon} steps of the horizon, each predicted "
        f"from the predictions before it. The linear autoregression reads the last {order} steps; its order was chosen "
        "on the validation split."
    )
    return {
        "results_note": note,
        "context_columns": ", ".join(f"`{code(name)}`" for name in recipe.data.context),
        "history": recipe.data.history,
        "horizon": recipe.data.horizon,
        "value_size": sizes.get("value_size", len(recipe.data.targets)),
        "context_size": sizes.get("context_size", len(recipe.data.context)),
        "uncertainty": ", and how sure it is" if recipe.model.settings.get("loss") == "gaussian" else "",
    }
