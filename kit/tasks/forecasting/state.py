"""The state of a forecaster: its configuration, and the series on which it is normalized and compared."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig

from kit.errors import RecipeError
from kit.pretrained.folder import load_config
from kit.recipe.model_settings import config_class
from kit.tasks.forecasting.evaluation import Baselines
from kit.tasks.forecasting.examples import Windows
from kit.tasks.forecasting.inference import SETTINGS
from kit.tasks.forecasting.recipe import Feature, ForecastingData, ForecastingRecipe
from kit.tasks.forecasting.series import Series
from kit.tasks.stages import TaskState


@dataclass(frozen=True)
class ForecastingState(TaskState):
    """The state of a forecaster. A trained one without its training data has no series, and so no baselines."""

    train: Sequence[Series] = ()
    """The training series: a new model takes its normalization from them, and the baselines are fitted on them."""
    validation: Windows | None = None
    """The windows on which the settings of the baselines are selected."""
    season: int | None = None
    """Number of steps in a season; None without one."""

    @property
    def features(self) -> list[Feature]:
        """The calendar features that the model reads."""
        return getattr(self.config, SETTINGS).get("calendar", [])

    @cached_property
    def baselines(self) -> Baselines:
        """The baselines of the training data, fitted when the first final evaluation asks for them."""
        assert self.validation is not None, "the state was restored without data"
        return Baselines.fit(self.train, self.validation, self.season)


def forecaster_config(
    recipe: ForecastingRecipe, value_size: int, context_size: int, fitted: Mapping[str, Any]
) -> PreTrainedConfig:
    """The configuration of a new or pretrained model, with the horizon and the columns of the recipe.

    `fitted` has the settings that the training data determines: calendar features, season, step between dates. Raises
    RecipeError if a pretrained model takes another number of values or of covariates at each step, or reads another
    calendar.
    """
    section, data = recipe.model, recipe.data
    sizes = {"value_size": value_size, "context_size": context_size}
    if section.pretrained is not None:
        config = load_config(section.pretrained, section.settings)
        if any(getattr(config, name, None) != size for name, size in sizes.items()):
            raise RecipeError(
                f"model.pretrained: it takes {getattr(config, 'value_size', 'no')} values and "
                f"{getattr(config, 'context_size', 'no')} known numbers at each step, but the data has "
                f"{value_size} and {context_size}."
            )
        trained_on = (getattr(config, SETTINGS, None) or {}).get("calendar", [])
        if trained_on != fitted["calendar"]:
            raise RecipeError(
                f"model.pretrained: it reads the calendar features {trained_on}, but here they are "
                f"{fitted['calendar']}. Set data.calendar."
            )
        config.horizon = data.horizon
    else:
        assert section.type is not None
        kind = config_class(section.type, recipe.kit_types)
        config = kind(**section.settings, **sizes, horizon=data.horizon)
    columns = {"values": data.targets, "context": data.context, "series": data.series, "date": data.date}
    setattr(config, SETTINGS, {**columns, "history": data.history, "missing": data.missing, **fitted})
    return config


def fit_normalization(model: Any, series: Sequence[Series]) -> None:
    """Set the normalization of a new model to the mean and deviation of all steps of the training series."""
    steps = [(item.values[item.present], item.context[: len(item)][item.present]) for item in series]
    values, context = (torch.from_numpy(np.concatenate(side)).unsqueeze(0) for side in zip(*steps, strict=True))
    model.fit_normalization(values, context=context if series[0].context_size else None)


def season_notes(state: ForecastingState, data: ForecastingData, stride: int) -> Iterator[str]:
    """Notes on the calendar and the season of the training data. Forecasts are evaluated every `stride` steps."""
    season = state.season
    if data.date is not None:
        yield f"calendar features: {', '.join(state.features) or 'none'}"
    if season is None:
        origin = "found" if data.season == "auto" else "set"
        yield f"no season was {origin} (data.season): there is no seasonal naive baseline"
        return
    origin = "found in the training data" if data.season == "auto" else "set by data.season"
    yield f"the season is {season:,} steps, {origin}"
    if season > data.history:
        yield (
            f"the season is longer than data.history ({data.history:,}): there is no seasonal naive baseline, and "
            "the model does not see a whole season"
        )
    phases = season // math.gcd(season, stride)
    if phases < season:
        yield f"evaluated forecasts start at only {phases:,} of the {season:,} steps of the season (eval.stride)"
