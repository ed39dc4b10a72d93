"""The model card of a forecaster: its sizes, its columns, and what the figures and baselines in the table are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cards.markdown import code
from kit.cards.tables import SPLITS, figures_of
from kit.system.files import read_json
from kit.tasks.forecasting.inference import SETTINGS, settings_of
from kit.tasks.forecasting.recipe import ForecastingRecipe


def card_sections(
    recipe: ForecastingRecipe, results: Mapping[str, Any], run_folder: Path, predicts_variance: bool
) -> dict[str, Any]:
    """Values for the card template of a forecaster."""
    data = recipe.data
    figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
    config = run_folder / "model" / "config.json"
    sizes = read_json(config, "a model configuration") if config.is_file() else {}
    settings = settings_of(sizes.get(SETTINGS, {}))
    note = (
        f"Errors are in the units of the data, over all {data.horizon} steps of the horizon; each step "
        "is predicted from the preceding predictions."
    )
    if "season" in figures:
        note += f" The seasonal naive forecast repeats the last {figures['season']} steps."
    elif "regression_order" in figures:
        note += " There is no seasonal naive forecast: no season was found or set (data.season)."
    if "regression_order" in figures:
        note += (
            f" The linear autoregression reads the last {figures['linear_order']} steps and predicts step by step; "
            f"the linear regression reads the last {figures['regression_order']} and predicts each step of the "
            "horizon directly. Their settings were selected on the validation split."
        )
    if predicts_variance:
        note += " Of a calibrated model, 50 % and 90 % of the values lie in the two intervals."
    return {
        "results_note": note,
        "context_columns": ", ".join(f"`{code(name)}`" for name in data.context),
        "history": data.history,
        "horizon": data.horizon,
        "value_size": sizes.get("value_size", len(data.targets)),
        "context_size": sizes.get("context_size", len(data.context)),
        "calendar": settings.get("calendar", []),
        "date": None if data.date is None else code(data.date),
        "predicts_variance": predicts_variance,
    }
