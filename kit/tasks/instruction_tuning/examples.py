"""Prompts with answers as examples: one text each, of which only the answer is learned."""

from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.rows import ColumnView
from kit.errors import DataError, RecipeError
from kit.tasks.families.language_modeling.task import PLAIN
from kit.tasks.instruction_tuning.inference import tokenize_prompts
from kit.tasks.instruction_tuning.recipe import InstructionData
from kit.training.objective import Batch


@dataclass(frozen=True)
class PromptExamples:
    """Encoded prompts with their answers, each of which ends with the end token."""

    prompts: RaggedTokens
    answers: RaggedTokens
    pad: int
    truncated: int = 0
    """Number of examples that were truncated to the positions of the model."""
    generation_prompts: RaggedTokens | None = None
    """The prompts from which answers are generated, if they differ: a long answer leaves less room for its prompt."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens that the model reads of each example: the last token is only predicted."""
        return self.prompts.lengths + self.answers.lengths - 1

    @property
    def alone(self) -> RaggedTokens:
        """The prompts from which answers are generated."""
        return self.prompts if self.generation_prompts is None else self.generation_prompts

    def select(self, indices: np.ndarray) -> "PromptExamples":
        return PromptExamples(self.prompts.select(indices), self.answers.select(indices), self.pad, self.truncated)

    def batch(self, indices: np.ndarray) -> Batch:
        """Prompt and answer of each example in one row. `labels` are shifted: the label of the last token of the prompt
        is the first token of the answer, and earlier tokens have none."""
        texts = [np.concatenate([self.prompts[i], self.answers[i]]) for i in indices]
        labels = [
            np.concatenate([np.full(len(self.prompts[i]) - 1, IGNORE_INDEX, dtype=np.int32), self.answers[i]])
            for i in indices
        ]
        rows = np.arange(len(indices))
        input_ids = RaggedTokens(ids[:-1] for ids in texts).padded(rows, self.pad)  # (batch, longest)
        lengths = torch.from_numpy(self.lengths[indices])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": RaggedTokens(labels).padded(rows, IGNORE_INDEX),
        }

    def prompt_batch(self, indices: np.ndarray) -> Batch:
        """The prompts alone, padded on the left, so that generation continues from the end of each."""
        prompts = [self.alone[i] for i in indices]
        longest = max(map(len, prompts))
        missing = torch.tensor([[longest - len(ids)] for ids in prompts])  # (batch, 1)
        rows = [np.concatenate([np.full(longest - len(ids), self.pad), ids]) for ids in prompts]
        mask = (torch.arange(longest) >= missing).long()
        return {"input_ids": torch.from_numpy(np.stack(rows)).long(), "attention_mask": mask}


def encode_prompts(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, data: InstructionData, split: str
) -> PromptExamples:
    """Tokenize prompts in the template, and answers with the end token.

    They are tokenized separately, so that a prompt has the same tokens whatever its answer, as in inference.
    """
    prompts = tokenize_prompts(tokenizer, data.template, list(ColumnView(rows, "prompt")))
    for number, ids in enumerate(prompts, start=1):
        if not ids:
            raise DataError(f"data.prompt: {data.path}, {split}, row {number}: the prompt has no tokens.")
    texts = list(ColumnView(rows, "answer"))
    answers = tokenizer(texts, **PLAIN)["input_ids"] if texts else []
    ended = RaggedTokens([*ids, tokenizer.eos_token_id] for ids in answers)
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return PromptExamples(RaggedTokens(prompts), ended, pad)


def truncate_to_positions(examples: PromptExamples, limit: int | None, max_new_tokens: int) -> PromptExamples:
    """Truncate examples to `limit` positions, None for no limit; `truncated` of the result is their number.

    A prompt loses its beginning, so that its answer, or `max_new_tokens` of output, fits after it. An answer loses its
    end only if it fills the positions alone. Answers are generated from prompts that leave room for `max_new_tokens`
    only, as in `kit generate`. Raises RecipeError if there is no room for a prompt.
    """
    if limit is None:
        return examples
    if max_new_tokens >= limit:
        raise RecipeError(
            f"eval.max_new_tokens: {max_new_tokens} leaves no room for a prompt: the model has {limit} positions."
        )
    answers = [examples.answers[i][: limit - 1] for i in range(len(examples))]
    rooms = [limit - max(max_new_tokens, len(answer)) for answer in answers]
    prompts = [examples.prompts[i][-room:] for i, room in enumerate(rooms)]
    truncated = [
        len(prompt) < prompt_length or len(answer) < answer_length
        for prompt, prompt_length, answer, answer_length in zip(
            prompts, examples.prompts.lengths, answers, examples.answers.lengths, strict=True
        )
    ]
    # the lengths are NumPy's, and so would be their sum, which JSON does not have
    count = int(np.count_nonzero(truncated))
    alone = RaggedTokens(examples.prompts[i][-(limit - max_new_tokens) :] for i in range(len(examples)))
    return PromptExamples(RaggedTokens(prompts), RaggedTokens(answers), examples.pad, count, alone)
