"""The keys of recipes that teach a causal model to answer prompts."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import PositiveInt

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection
from kit.recipe.training import EvalSection

PLACE = "{prompt}"
AnswerMetric = Annotated[
    Literal["exact_match", "token_accuracy", "rouge1", "rouge2", "rougeL", "bleu", "chrf"], or_registered("text")
]


class InstructionData(DataSection):
    """The data: where it is, which columns hold prompts and answers, and how the model reads a prompt."""

    prompt: str = "prompt"
    """Column of what the model is asked."""

    answer: str = "answer"
    """Column of what it should write."""

    template: str = "{prompt}\n"
    """What the model reads before it answers, with {prompt} where the prompt goes. Special tokens that are written here
    are read as such."""

    max_length: Annotated[int, Gt(1)] | None = None
    """Longer training examples, prompt and answer together, are left out, and counted; by default those that are longer
    than the model has positions for. Of prompts that are evaluated the beginning is cut off where it must be."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {self.prompt: "prompt", self.answer: "answer"}

    def written(self, prompt: str) -> str:
        """What the model reads of a prompt."""
        return self.template.replace(PLACE, prompt)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.prompt == self.answer:
            yield "answer", f'prompt and answer are both "{self.answer}".'
        if self.template.count(PLACE) != 1:
            yield "template", f"expected {PLACE} once, where the prompt goes."
        if self.streaming:
            yield "streaming", "instructions are read into memory. Leave it out."


class InstructionEval(EvalSection):
    """Evaluation: when, by which metrics, and how long answers may be."""

    metrics: list[AnswerMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on answers that the model writes, besides the loss; rouge1 is the F1 of their words. Without
    metrics only a few are written, to be shown."""

    max_new_tokens: PositiveInt = 64
    """Most tokens of an answer that the model writes."""


class InstructionTuningRecipe(Recipe):
    """Answer a prompt: learned from the answers alone."""

    own_types: ClassVar[tuple[str, ...]] = ("rnn_lm",)
    mapping: ClassVar[str | None] = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "text-generation"
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    peft_task_type: ClassVar[str | None] = "CAUSAL_LM"

    task: Literal["instruction_tuning"]
    """Answer prompts: fine-tuning of a causal model with the loss on the answers alone."""

    data: InstructionData
    """The data: where it is and what to use of it."""

    eval: InstructionEval = InstructionEval()
    """Evaluation: when, by which metrics, and how long answers may be."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name, plain in (("label_smoothing_factor", 0.0), ("normalize_by", "tokens")):
            if getattr(self.train, name) != plain:
                yield f"train.{name}", f"it has no effect on {self.task}. Leave it out."


__all__ = ["InstructionData", "InstructionTuningRecipe"]
