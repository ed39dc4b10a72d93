"""The type of a recipe field that names metrics: kit's by a Literal, and those that the user registers."""

from functools import partial

from kit.evaluation.metrics.registry import Kind, registered_metrics
from kit.recipe.section import Extensible


def or_registered(*kinds: Kind) -> Extensible:
    """Extends a choice of metrics by registered ones of these kinds: `Annotated[Literal[…], or_registered("text")]`."""
    return Extensible(partial(registered_metrics, *kinds), "a metric added with kit.register_metric")
