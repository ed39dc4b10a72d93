"""The recipe of instruction tuning."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.base import Recipe, SupportsAdapters, UsesTokenizer
from kit.recipe.data import DataSection, LanguagesKey
from kit.recipe.section import MAX_COUNT, NewTokens
from kit.recipe.suggestion import DataSample, Suggestion
from kit.recipe.training import EvalSection
from kit.tasks.families.language_modeling.recipe import LanguageModelTrain

PLACEHOLDER = "{prompt}"
AnswerMetric = Annotated[
    Literal["exact_match", "token_accuracy", "rouge1", "rouge2", "rougeL", "bleu", "chrf"], or_registered("text")
]


class InstructionData(LanguagesKey, DataSection):
    """Location, columns and prompt template of the data."""

    text_keys: ClassVar[tuple[str, ...]] = ("prompt", "answer")
    encoding_keys: ClassVar[tuple[str, ...]] = ("template",)

    prompt: str = "prompt"
    """Column of the prompt."""

    answer: str = "answer"
    """Column of the answer to learn."""

    template: str = "{prompt}\n"
    """Text that the model reads before it answers; {prompt} stands for the prompt. Special tokens in the template are
    tokenized as special tokens."""

    max_length: Annotated[int, Gt(1), Le(MAX_COUNT)] | None = None
    """Drop training examples with more tokens than this, prompt and answer together; they are counted. By default the
    number of positions of the model. In evaluation, prompts that are too long lose their beginning."""

    @property
    def target_roles(self) -> tuple[str, ...]:
        return ("answer",)

    def written(self, prompt: str) -> str:
        """The prompt in the template, as the model reads it."""
        return self.template.replace(PLACEHOLDER, prompt)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.template.count(PLACEHOLDER) != 1:
            yield "template", f"expected exactly one {PLACEHOLDER}, where the prompt goes."


class InstructionEval(EvalSection[AnswerMetric]):
    """Frequency and metrics of evaluation, and length of the answers."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("examples", "max_new_tokens")

    metrics: list[AnswerMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on generated answers, in addition to the loss; rouge1 is their unigram F1. Without metrics, only
    a few answers are generated, to be printed."""

    max_new_tokens: NewTokens = 64
    """Maximum number of tokens in a generated answer."""

    def unused_in_evaluation(self) -> dict[str, str]:
        idle = ("examples",) if self.metrics else ()
        return super().unused_in_evaluation() | dict.fromkeys(idle, "with eval.metrics, which need all answers")


class InstructionTuningRecipe(UsesTokenizer, SupportsAdapters, Recipe):
    """Instruction tuning: answer prompts, with the loss on the answers only."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_lm",)
    mapping: ClassVar[str | None] = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "text-generation"
    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    peft_task_type: ClassVar[str | None] = "CAUSAL_LM"

    task: Literal["instruction_tuning"]
    """Instruction tuning: fine-tune a causal language model to answer prompts, with the loss on the answers only."""

    data: InstructionData
    """Location, columns and prompt template of the data."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest instruction tuning for a prompt and an answer, by their usual names."""
        texts = [column for column in sample.columns if column.is_text and not column.is_image]
        prompt = sample.find("prompt", "instruction", "question", "input", among=texts)
        others = [column for column in texts if column is not prompt]
        answer = sample.find("response", "completion", "answer", "output", "chosen", among=others)
        if prompt is None or answer is None or sample.is_parallel:
            return None
        data = {"prompt": prompt.name, "answer": answer.name, **sample.held_out()}
        return Suggestion(0.88, "prompt → answer of a causal language model", "lora_causal_lm", data)

    train: LanguageModelTrain
    """Duration, batch size, optimizer and learning rate of training."""

    eval: InstructionEval = InstructionEval()
    """Frequency and metrics of evaluation, and length of the answers."""
