"""The recipe of causal language modeling."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from kit.recipe.base import SupportsAdapters
from kit.recipe.section import NewTokens, NonNegativeInt, PositiveFloat
from kit.recipe.training import EvalSection
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe, TextData


class CausalData(TextData):
    """Location, documents and blocks of the text."""

    in_memory_keys: ClassVar[tuple[str, ...]] = (*TextData.in_memory_keys, "carry_state")

    separate_documents: bool = False
    """Restrict attention to the document of each token when a block holds several; false lets tokens attend across the
    end of a document, which a special token marks."""

    carry_state: bool = False
    """Read the text in order and carry the recurrent state from block to block (truncated backpropagation through
    time), so that the model remembers more than one block. A step reads as many parallel streams as it has blocks."""

    @property
    def fixes_micro_batches(self) -> str | None:
        return "carry_state" if self.carry_state else super().fixes_micro_batches


class CausalEval(EvalSection[Literal["bits_per_byte"]]):
    """Frequency and samples of evaluation. Loss and perplexity are always reported."""

    sampling_keys: ClassVar[tuple[str, ...]] = ("prompt_tokens", "max_new_tokens", "temperature", "top_p")
    evaluation_keys: ClassVar[tuple[str, ...]] = ("examples", *sampling_keys)
    reports_all_metrics: ClassVar[bool] = True

    metrics: list[Literal["bits_per_byte"]] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics, besides the loss, that can select the best checkpoint; they are always reported."""

    prompt_tokens: NonNegativeInt = 8
    """Length of the prompts of the samples, in tokens: the beginnings of validation blocks. 0 samples without a
    prompt."""

    max_new_tokens: NewTokens = 60
    """Length of a sample, in tokens; at most what the model has positions for after the prompt."""

    temperature: PositiveFloat = 0.8
    """Sampling temperature: 1 keeps the model's distribution, lower values sharpen it."""

    top_p: Annotated[float, Gt(0), Le(1)] = 0.95
    """Nucleus sampling: keep only the most probable tokens, up to this total probability."""

    def unused_in_evaluation(self) -> dict[str, str]:
        idle = () if self.examples else self.sampling_keys
        return super().unused_in_evaluation() | dict.fromkeys(idle, "with eval.examples: 0")


class CausalLMRecipe(SupportsAdapters, LanguageModelRecipe):
    """Causal language modeling: predict the next token, as GPT does."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_lm",)
    mapping: ClassVar[str | None] = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "text-generation"
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    starting_recipe: ClassVar[str] = "gpt_tiny"
    learns: ClassVar[str] = "the next token"
    suggested_score: ClassVar[float] = 0.8
    peft_task_type: ClassVar[str | None] = "CAUSAL_LM"

    task: Literal["causal_lm"]
    """Causal language modeling: predict the next token, with GPT-style or recurrent models."""

    data: CausalData
    """Location, documents and blocks of the text."""

    eval: CausalEval = CausalEval()
    """Frequency and samples of evaluation."""
