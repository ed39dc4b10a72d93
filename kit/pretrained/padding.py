"""Models whose results depend on the padding of a batch."""

from typing import Any

WITH_SUMMARY_TYPE = ("flaubert", "xlm", "xlnet")
"""Model types whose classification head reads the position that `summary_type` names, whatever the attention mask."""


def padding_problem(config: Any) -> str | None:
    """Why a model with this configuration cannot classify texts in batches; None if it can.

    Heads of transformers that read the last token look for the last one that is not padding. Those of
    `WITH_SUMMARY_TYPE` take the last position of the batch, or the mean of all: right for the longest text only.
    """
    if config.model_type not in WITH_SUMMARY_TYPE or config.summary_type == "first":
        return None
    return (
        f'the classification head of a {config.model_type} with summary_type "{config.summary_type}" reads padding, so '
        "predictions would depend on the other texts of a batch. Use another model, such as a bert or roberta"
    )
