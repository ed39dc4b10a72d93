"""Generation settings: how the next token is chosen, and how long outputs are."""

from dataclasses import dataclass
from typing import Any, Literal

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.errors import KitError
from kit.pretrained.positions import position_limit


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of greedy search, beam search or sampling.

    The defaults of transformers, such as 20 new tokens, are never used.
    """

    num_beams: int = 1
    max_new_tokens: int = 128
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    num_return_sequences: int = 1
    forced_bos_token_id: int | None = None  # first token of every output, such as a language code; None: from the model
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0  # of sampling

    def seq2seq_config(self, model: PreTrainedModel) -> GenerationConfig:
        """The settings for an encoder-decoder, with the special, forced first and suppressed tokens of the model.

        `generate()` fills what is None here from `model.generation_config`, so a published model keeps its `min_length`
        and penalties. A model in training has this as its `generation_config`, and searches as the recipe describes.
        """
        defaults = model.generation_config  # the model config does not always have all of these tokens
        forced = self.forced_bos_token_id
        return GenerationConfig(
            **self._search_arguments(),
            max_new_tokens=min(self.max_new_tokens, position_limit(model.config) or self.max_new_tokens),
            bos_token_id=defaults.bos_token_id,
            eos_token_id=defaults.eos_token_id,
            pad_token_id=defaults.pad_token_id,
            decoder_start_token_id=defaults.decoder_start_token_id,
            forced_bos_token_id=defaults.forced_bos_token_id if forced is None else forced,
            suppress_tokens=defaults.suppress_tokens,
            bad_words_ids=defaults.bad_words_ids,
        )

    def causal_config(
        self, tokenizer: PreTrainedTokenizerBase, eos_token_id: int | list[int] | None = None
    ) -> GenerationConfig:
        """The settings for a causal language model, with the tokenizer's special tokens, or another end token."""
        end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        return GenerationConfig(
            **self._search_arguments(),
            max_new_tokens=self.max_new_tokens,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=end if eos_token_id is None else eos_token_id,
            pad_token_id=end if pad is None else pad,
        )

    def _search_arguments(self) -> dict[str, Any]:
        """The arguments of `GenerationConfig` for choosing tokens; length and special tokens depend on the model."""
        arguments: dict[str, Any] = {
            "num_beams": self.num_beams,
            "num_return_sequences": self.num_return_sequences,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "do_sample": self.do_sample,
        }
        # transformers warns about settings of beam search or sampling without it
        if self.do_sample:
            arguments |= {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        elif self.num_beams > 1:
            arguments |= {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        return arguments


def saved_settings(model: PreTrainedModel, **changes: object) -> GenerationSettings:
    """The generation settings saved with an encoder-decoder, with changes; None leaves a setting unchanged.

    Raises KitError if `max_new_tokens` exceeds the positions of the model.
    """
    saved, positions = model.generation_config, position_limit(model.config)
    max_new_tokens = saved.max_new_tokens or (saved.max_length or 0) - 1  # max_length counts the start token
    if max_new_tokens < 1:
        max_new_tokens = GenerationSettings.max_new_tokens
    defaults = {
        "num_beams": saved.num_beams or 1,
        "max_new_tokens": max_new_tokens if positions is None else min(max_new_tokens, positions),
        "length_penalty": 1.0 if saved.length_penalty is None else saved.length_penalty,
        "early_stopping": saved.early_stopping or False,
        "no_repeat_ngram_size": saved.no_repeat_ngram_size or 0,
    }
    overrides = {name: value for name, value in changes.items() if value is not None}
    settings = GenerationSettings(**{**defaults, **overrides})  # type: ignore[arg-type]
    if positions is not None and settings.max_new_tokens > positions:
        raise KitError(
            f"max_new_tokens={settings.max_new_tokens} is more than the model has positions for: at most {positions}"
        )
    return settings
