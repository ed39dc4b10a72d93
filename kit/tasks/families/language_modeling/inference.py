"""Continue lines of text with a causal language model."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from kit.data.text.tokenizer import Tokenizers
from kit.decoding.settings import GenerationSettings
from kit.errors import KitError
from kit.pipelines.text_to_text import decode_text, unknown_id
from kit.prediction.engine import Encoded
from kit.prediction.issues import longer_than
from kit.prediction.options import SAMPLING, WITHOUT_BEAMS, GenerateOptions
from kit.prediction.text import CHARACTERS_PER_TOKEN, MAX_SOURCE_TOKENS, Output, TextPredictor

INSTRUCTIONS = "instructions"
"""Field of the model's configuration with the prompt template of instruction tuning."""

MAX_NEW_TOKENS = 60
"""Length of continuations if neither the model nor the user sets it: the default of eval.max_new_tokens."""


class Prompt(NamedTuple):
    """A line, and the tokens that the model continues."""

    text: str
    ids: list[int]


class Completer(TextPredictor[Prompt]):
    """A causal language model. The score of an output is the mean log-probability of its new tokens."""

    auto_class: ClassVar[Any] = AutoModelForCausalLM
    description: ClassVar[str] = "a language model"
    supported: ClassVar[frozenset[str]] = SAMPLING
    action: ClassVar[str] = "continued"

    def configure(self, options: GenerateOptions) -> None:
        super().configure(options)
        sampling = options.sampling_changes()
        default = self.default_new_tokens(self.model.generation_config.max_new_tokens)
        chosen = {name: value for name, value in options.search_changes().items() if value is not None}
        settings = GenerationSettings(**{"max_new_tokens": default, **chosen, **sampling})
        if self.positions is not None and settings.max_new_tokens >= self.positions:
            raise KitError(
                f"max_new_tokens={settings.max_new_tokens} is more than the model has positions for beside a prompt: "
                f"at most {self.positions - 1}"
            )
        if not settings.do_sample:
            settings = replace(settings, num_beams=options.beams(1))
        if options.length_penalty is not None and settings.num_beams == 1:
            raise KitError(f"--length-penalty has no effect {WITHOUT_BEAMS}. Leave it out")
        self.settings = settings
        self.tokens_per_batch = max(1, options.tokens_per_batch // max(settings.num_beams, options.n_best))
        self.max_source_tokens = (
            MAX_SOURCE_TOKENS if self.positions is None else self.positions - settings.max_new_tokens
        )

    def default_new_tokens(self, saved: int | None) -> int:
        """The maximum number of new tokens that no option sets, from the one that was saved with the model."""
        wanted = saved or MAX_NEW_TOKENS
        return wanted if self.positions is None else max(1, min(wanted, self.positions // 2))

    def start(self) -> None:
        torch.manual_seed(self.settings.seed)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.folder.tokenizer

    @property
    def tokenizers(self) -> Tokenizers:
        return Tokenizers(self.tokenizer, self.tokenizer)

    def encode(self, items: list[str]) -> list[Encoded[Prompt]]:
        """Tokenize each line, and keep its last tokens: as many as leave room for new ones."""
        limit = self.max_source_tokens
        max_characters = limit * CHARACTERS_PER_TOKEN
        issue = longer_than(limit, "tokens", "only the end was read")
        return [
            Encoded([Prompt(line, ids[-limit:])], issue if len(ids) > limit or len(line) > max_characters else None)
            for line, ids in zip(items, self.tokenize([line[-max_characters:] for line in items]), strict=True)
        ]

    def tokenize(self, lines: list[str]) -> list[list[int]]:
        """Tokenize lines. An empty line becomes the token that preceded every text in training."""
        bos, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return [ids or [end if bos is None else bos] for ids in self.tokenizer(lines, verbose=False)["input_ids"]]

    def lengths(self, units: list[Prompt]) -> np.ndarray:
        return np.array([len(prompt.ids) for prompt in units]) + self.settings.max_new_tokens

    @torch.inference_mode()
    def predict(self, units: list[Prompt]) -> list[list[Output]]:
        # padded on the left, so that new tokens follow the last token of each prompt
        width = max(len(prompt.ids) for prompt in units)
        ids = torch.full((len(units), width), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(units):
            ids[row, width - len(prompt.ids) :] = torch.tensor(prompt.ids)
            mask[row, width - len(prompt.ids) :] = 1
        config = self.settings.causal_config(self.tokenizer, self.model.generation_config.eos_token_id)
        with_beams = self.settings.num_beams > 1
        config.return_dict_in_generate = True
        config.output_scores = with_beams  # without them there are no scores of whole texts
        config.output_logits = self.options.scores and not with_beams
        device = self.model.device
        result = self.model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=config)
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        n, outputs = self.settings.num_return_sequences, []
        for row, tokens in enumerate(result.sequences[:, width:].tolist()):
            length = next((i + 1 for i, token in enumerate(tokens) if token in ends), None)
            new = tokens[:length]
            self.unknown_tokens += new.count(unknown_id(self.tokenizer))
            text = self.decode(units[row // n], new)
            outputs.append(Output(text, self._score(result, row, new), length is not None))
        return [outputs[i : i + n] for i in range(0, len(outputs), n)]

    def _score(self, result: Any, row: int, tokens: list[int]) -> float:
        if self.settings.num_beams > 1:
            return float(result.sequences_scores[row])
        if not self.options.scores:
            return 0.0
        steps: list[Tensor] = [step[row] for step in result.logits[: len(tokens)]]
        total = sum(float(step.float().log_softmax(-1)[token]) for step, token in zip(steps, tokens, strict=True))
        return total / max(1, len(tokens))

    def decode(self, prompt: Prompt, new: list[int]) -> str:
        """The line with the new tokens as text. The line itself stays unchanged, unless the tokenizer normalizes
        text."""
        before, whole = decode_text(self.tokenizer, prompt.ids), decode_text(self.tokenizer, prompt.ids + new)
        return prompt.text + whole[len(before) :] if whole.startswith(before) else whole
