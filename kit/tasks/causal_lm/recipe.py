"""The recipe of causal language modeling."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kit.recipe.training import EvalSection
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe, TextData


class CausalData(TextData):
    """The text: where it is, what a document is, and how it is cut into blocks."""

    separate_documents: bool = False
    """No token sees what stands before its own document, though a block holds several; false lets the model read on
    over the end of a document, which is marked."""

    carry_state: bool = False
    """Read the text in order, in as many streams as a step has blocks, and let a recurrent model go on from the state
    in which it left the block before: it remembers more than a block (truncated backpropagation through time)."""

    def needing_all_data(self) -> list[str]:
        return super().needing_all_data() + ["carry_state"] * self.carry_state


class CausalEval(EvalSection):
    """Evaluation: when, and how samples are written. Loss and perplexity are always measured."""

    metrics: list[Literal["bits_per_byte"]] = []  # type: ignore[assignment]  # noqa: RUF012
    """Figures that may select the best step besides the loss; they are measured in any case."""

    select_by: Literal["loss", "bits_per_byte"] = "loss"
    """What makes a checkpoint the best one."""

    prompt_tokens: NonNegativeInt = 8
    """Length of the beginnings of validation blocks that the samples go on from; 0 lets them start from nothing."""

    max_new_tokens: PositiveInt = 60
    """Length of a sample, in tokens."""

    temperature: PositiveFloat = 0.8
    """How adventurous samples are: 1 follows the model's probabilities, less prefers what is likely."""

    top_p: Annotated[float, Gt(0), Le(1)] = 0.95
    """Samples draw from the likeliest tokens that together have this probability."""


class CausalLMRecipe(LanguageModelRecipe):
    """Predict the next token, as GPT learns."""

    own_types: ClassVar[tuple[str, ...]] = ("rnn_lm",)
    mapping: ClassVar[str | None] = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "text-generation"
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    peft_task_type: ClassVar[str | None] = "CAUSAL_LM"

    task: Literal["causal_lm"]
    """Predict the next token: GPT's pretraining, and recurrent language models."""

    data: CausalData
    """The text: where it is and what to use of it."""

    eval: CausalEval = CausalEval()
    """Evaluation: when, and how samples are written."""
