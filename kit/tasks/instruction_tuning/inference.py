"""Answer prompts with an instruction-tuned model."""

from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase

from kit.pipelines.text_to_text import decode_text
from kit.prediction.engine import Encoded
from kit.prediction.text import BLANK, encode_blank
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS, Completer, Prompt
from kit.tasks.instruction_tuning.recipe import PLACEHOLDER


class Answerer(Completer):
    """An instruction-tuned model: each line is a prompt, which it reads in the template of its training."""

    description: ClassVar[str] = "an instruction-tuned model"
    action: ClassVar[str] = "answered"

    def default_new_tokens(self, saved: int | None) -> int:
        # training has checked that it leaves room for a prompt, and evaluated with it
        return super().default_new_tokens(saved) if saved is None else saved

    def encode(self, items: list[str]) -> list[Encoded[Prompt]]:
        encoded = super().encode(items)
        return [encode_blank(line) if BLANK.fullmatch(line) else e for line, e in zip(items, encoded, strict=True)]

    def tokenize(self, lines: list[str]) -> list[list[int]]:
        return tokenize_prompts(self.tokenizer, getattr(self.config, INSTRUCTIONS)["template"], lines)

    def decode(self, prompt: Prompt, new: list[int]) -> str:
        """The answer, without the prompt."""
        return decode_text(self.tokenizer, new)


def tokenize_prompts(tokenizer: PreTrainedTokenizerBase, template: str, prompts: list[str]) -> list[list[int]]:
    """Tokenize each prompt in the template, without the end token that some tokenizers add to every text.

    Special tokens in the template are tokens. If it has none, those in a prompt are plain text.
    """
    if not prompts:
        return []
    template_is_plain = not any(token in template for token in tokenizer.all_special_tokens)
    arguments: dict[str, Any] = {"split_special_tokens": template_is_plain, "verbose": False}
    ids = tokenizer([template.replace(PLACEHOLDER, prompt) for prompt in prompts], **arguments)["input_ids"]
    if ids[0][-1:] == [tokenizer.eos_token_id] and not template.endswith(tokenizer.eos_token):
        return [tokens[:-1] for tokens in ids]
    return ids
