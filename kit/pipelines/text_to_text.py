"""The pipelines `translation`, `summarization` and `text2text-generation`, and the tokenizer of two vocabularies.

This file is self-contained: it is saved with a model, so that it works without kit.
"""

import re
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, Pipeline, PreTrainedTokenizerBase, PreTrainedTokenizerFast

TRANSLATION = "translation"
TARGET_FILE = "target_tokenizer.json"
DIRECTION = re.compile(rf"{TRANSLATION}_(.+)_to_(.+)")

# Keys in tokenizer_config.json, which kit/data/text/languages.py writes.
TAGGED = "target_languages"
CODES = "language_names"
PREFIX = "source_prefix"


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of the token that stands for unknown text, or None if the tokenizer has none.

    Byte-level tokenizers know all text; some nevertheless name an unknown token, which has another role (in GPT-2, the
    end of a text).
    """
    unknown = tokenizer.unk_token_id
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if unknown in others else unknown


def decode_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], **arguments: Any) -> str:
    """The text of generated tokens. Of the special tokens, it shows only the unknown one, which stands for a word.

    `decode` would drop that one too: the sentence would lack a word, and metrics would be those of a shorter sentence.
    """
    unknown = unknown_id(tokenizer)
    if unknown is None or unknown not in ids:
        return tokenizer.decode(ids, skip_special_tokens=True, **arguments)
    dropped = set(tokenizer.all_special_ids) - {unknown}
    shown = [token for token in ids if token not in dropped]
    return tokenizer.decode(shown, skip_special_tokens=False, **arguments)


class SourceTargetTokenizer(PreTrainedTokenizerFast):
    """The tokenizer of a model with one vocabulary for sources and another one for targets; it is used as Marian's is.

    `tokenizer(text)` encodes sources, and `tokenizer(text_target=text)` targets. `decode` and `batch_decode` are for
    what the model generates: they read target ids, unless they are called with `use_source_tokenizer=True`. All else,
    such as `get_vocab` and `convert_ids_to_tokens`, is about sources; `target_tokenizer` is about targets. Both
    vocabularies have the same special tokens with the same ids.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": TARGET_FILE}  # noqa: RUF012

    def __init__(
        self,
        *args: Any,
        target_tokenizer_file: str | None = None,
        target_tokenizer_object: Tokenizer | None = None,
        **kwargs: Any,
    ):
        """The target vocabulary is that of a file or of an object, as is the source vocabulary in other arguments."""
        super().__init__(*args, **kwargs)
        if target_tokenizer_object is None:
            if target_tokenizer_file is None:
                raise ValueError(f"the target vocabulary is missing: expected {TARGET_FILE} beside tokenizer.json")
            target_tokenizer_object = Tokenizer.from_file(target_tokenizer_file)
        self._source_backend: Tokenizer = self.backend_tokenizer
        settings = ("split_special_tokens", "clean_up_tokenization_spaces", "model_input_names", "model_max_length")
        self.target_tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=target_tokenizer_object,
            **{name: str(token) for name, token in self.special_tokens_map.items() if isinstance(token, str)},
            **{name: getattr(self, name) for name in settings},
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Leave the files to `__init__`: transformers would build another tokenizer from the vocabulary of one."""
        return kwargs

    @property
    def source_tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer of the source vocabulary alone, with all settings of this one."""
        settings = {name: value for name, value in self.init_kwargs.items() if name not in ("auto_map", "backend")}
        return PreTrainedTokenizerFast(tokenizer_object=self._source_backend, **settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        finally:  # after an error, too
            self._switch_to_input_mode()

    def _switch_to_input_mode(self) -> None:
        self._tokenizer = self._source_backend

    def _switch_to_target_mode(self) -> None:
        self._tokenizer = self.target_tokenizer.backend_tokenizer

    def _decode(self, token_ids: Any, *args: Any, use_source_tokenizer: bool = False, **kwargs: Any) -> str:
        if use_source_tokenizer:
            return super()._decode(token_ids, *args, **kwargs)
        return self.target_tokenizer._decode(token_ids, *args, **kwargs)

    def _save_pretrained(
        self,
        save_directory: Any,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        saved = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        file = Path(save_directory) / (f"{filename_prefix}-{TARGET_FILE}" if filename_prefix else TARGET_FILE)
        self.target_tokenizer.backend_tokenizer.save(str(file))
        return (*saved, str(file))


SourceTargetTokenizer.register_for_auto_class()


class TextToTextPipeline(Pipeline):
    """Generate text from text: `pipe("…")` → `[{"…_text": "…"}]`, `pipe(["…", "…"])` → one such dict per input.

    A generator or a dataset is streamed: it returns an iterator over such lists. With `num_return_sequences=n`, each
    input gets a list of n dicts, best first. `return_scores=True` adds `score`, the sum of log-probabilities divided by
    length ** length_penalty, and `finished`, whether the output ends with an end token. `return_tensors=True` returns
    `…_token_ids` instead of the text, without the decoder's start token. `truncation=True` truncates inputs to what the
    model can read. `src_lang` and `tgt_lang` select the languages of a multilingual model. All other arguments are
    passed to `generate()`. Any argument can also be given when the pipeline is created.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=256, num_beams=4)  # as in transformers 4
    return_name: str
    needs_languages = False
    """Whether a model with language codes is rejected if neither the call nor its tokenizer selects the languages."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config = self.model.config
        if not config.is_encoder_decoder:
            raise ValueError(f"{self.task} needs an encoder-decoder, not {type(self.model).__name__}")
        self._check_codes(self.tokenizer("")["input_ids"])
        # not `isinstance`: the class may come from the folder of a model
        self.target_tokenizer: PreTrainedTokenizerBase = getattr(self.tokenizer, "target_tokenizer", self.tokenizer)
        if self.target_tokenizer is self.tokenizer and getattr(config, "separate_vocabularies", False):
            raise ValueError(
                f"{self.task}: the model has a vocabulary for sources and another one for targets, and the tokenizer "
                f"has one. Pass the tokenizer that was saved with the model ({SourceTargetTokenizer.__name__})"
            )
        named = DIRECTION.fullmatch(self.task)
        self.direction = named.groups() if named else (None, None)
        # T5 and others have a prefix and generation settings for each task
        defaults = dict((getattr(config, "task_specific_params", None) or {}).get(self.task, {}))
        prefix = defaults.pop("prefix", None) or getattr(config, "prefix", None) or ""
        self.prefix: str = self.tokenizer.init_kwargs.get(PREFIX, prefix)
        if "max_length" in defaults:
            self._generation_defaults.pop("max_new_tokens", None)
        self._generation_defaults.update(defaults)
        if named and not defaults and not self._is_tagged and not self._has_codes:
            warnings.warn(
                f"This model has no language codes: {self.task} is the same as translation, in the direction that the "
                "model was trained for.",
                stacklevel=2,
            )

    # ---- languages ---------------------------------------------------------------------------------------------------

    @property
    def _is_tagged(self) -> bool:
        """Whether a tag such as <2en> before the source selects the target language."""
        return bool(self.tokenizer.init_kwargs.get(TAGGED))

    @property
    def _has_codes(self) -> bool:
        """Whether the tokenizer has language codes, as those of mBART-50, NLLB and M2M-100 do."""
        return hasattr(self.tokenizer, "set_tgt_lang_special_tokens")

    def _check_codes(self, ids: list[int]) -> None:
        """Raise ValueError if a tokenizer ends texts with a language code, from which the model starts its output."""
        if self._has_codes and ids[-1:] != [self.tokenizer.eos_token_id]:
            raise ValueError(
                f"{self.task}: {type(self.tokenizer).__name__} puts the language code after the text, as in "
                "first-generation mBART, which this pipeline does not support. Use mBART-50, NLLB or M2M-100 (NLLB "
                "without legacy_behaviour in tokenizer_config.json)"
            )

    def _code(self, side: str, language: str | None) -> str | None:
        """The code of a language, by default that of the task or the tokenizer for a side ("src" or "tgt").

        None if nothing names a language and none is needed. Raises ValueError for an unknown or missing one.
        """
        saved = self.tokenizer.init_kwargs
        names = saved.get(CODES) or {}
        name = language or self.direction[side == "tgt"] or (None if names else saved.get(f"{side}_lang"))
        if name is None:
            if self.needs_languages or names:
                raise ValueError(f"{self.task}: this model needs {side}_lang")
            return None
        code = names.get(name, name)
        if code not in self._codes:
            known = ", ".join(list(names or self._codes)[:8])
            raise ValueError(f'{self.task}: the model has no {side}_lang "{name}" (it has {known}, …)')
        return code

    @property
    def _codes(self) -> Collection[str]:
        """The language codes of the tokenizer."""
        return getattr(self.tokenizer, "lang_code_to_token", None) or self.tokenizer.all_special_tokens

    def _target_tag(self, tgt_lang: str | None) -> list[int]:
        """The tag before the source, as token ids; empty if the model has no tags."""
        if not self._is_tagged:
            return []
        known = self.tokenizer.init_kwargs[TAGGED]
        name = tgt_lang or self.direction[1] or (known[0] if len(known) == 1 else None)
        if name not in known:
            raise ValueError(f"{self.task}: tgt_lang must be one of {', '.join(known)}, not {name}")
        return [self.tokenizer.convert_tokens_to_ids(f"<2{name}>")]

    @contextmanager
    def _source_language(self, src_lang: str | None) -> Iterator[None]:
        """Context manager: the tokenizer encodes sources in this language within the block."""
        code = self._code("src", src_lang) if self._has_codes else None
        if code is None:
            yield
            return
        before = self.tokenizer.src_lang
        self.tokenizer.src_lang = code
        try:
            yield
        finally:
            self.tokenizer.src_lang = before

    def _forced_tokens(self, tgt_lang: str | None) -> dict[str, int]:
        """The arguments of `generate()` that make outputs start with the code of a language."""
        code = self._code("tgt", tgt_lang) if self._has_codes else None
        if code is None:
            return {}
        tokenizer = self.tokenizer
        is_m2m = hasattr(tokenizer, "lang_code_to_token")  # its codes are not its tokens: "en" is "__en__"
        token = tokenizer.get_lang_id(code) if is_m2m else tokenizer.convert_tokens_to_ids(code)
        return {"forced_bos_token_id": token}

    # ---- text → tokens → text ----------------------------------------------------------------------------------------

    def _sanitize_parameters(
        self,
        return_scores: bool | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        truncation: bool | str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if (src_lang or tgt_lang) and not self._is_tagged and not self._has_codes:
            raise ValueError(
                f"{self.task}: src_lang and tgt_lang are for multilingual models; this model has a single direction"
            )
        preprocess = {"truncation": truncation, "src_lang": src_lang, "tgt_lang": tgt_lang}
        forward = {"return_scores": return_scores, "tgt_lang": tgt_lang}
        postprocess = {
            "return_tensors": return_tensors,
            "return_text": return_text,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        if self.assistant_model is not None:
            generate_kwargs["assistant_model"] = self.assistant_model
        if self.assistant_tokenizer is not None:
            generate_kwargs |= {"tokenizer": self.tokenizer, "assistant_tokenizer": self.assistant_tokenizer}
        before, during, after = (
            {name: value for name, value in arguments.items() if value is not None}
            for arguments in (preprocess, forward, postprocess)
        )
        return before, {**during, **generate_kwargs}, after

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, Sequence) or isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        # a list or a column of a dataset; transformers would search an empty one for chat messages
        outputs = super().__call__(list(inputs), **kwargs) if len(inputs) else []
        return [records[0] for records in outputs] if all(len(records) == 1 for records in outputs) else outputs

    def preprocess(
        self, inputs: str, truncation: bool | str = False, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, torch.Tensor]:
        if not isinstance(inputs, str):
            raise ValueError(f"{self.task} takes a text or a list of texts, not {type(inputs).__name__}")
        tag = self._target_tag(tgt_lang)
        limit = {"max_length": self._max_source_length() - len(tag)} if truncation else {}
        with self._source_language(src_lang):
            ids = self.tokenizer(self.prefix + inputs, truncation=truncation, **limit)["input_ids"]
        self._check_codes(ids)  # again: some tokenizers add a code only once a language is set
        input_ids = torch.tensor([tag + ids], dtype=torch.long)
        if input_ids.shape[1] == 0:  # an empty text without an end token: one masked token
            pad = torch.full((1, 1), self.tokenizer.pad_token_id)
            return {"input_ids": pad, "attention_mask": torch.zeros_like(pad)}
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    def _max_source_length(self) -> int:
        """The number of tokens that the model can read, according to tokenizer and config."""
        config, limits = self.model.config, [self.tokenizer.model_max_length]
        limits.append(getattr(config, "max_position_embeddings", None) or limits[0])
        return min(limits)

    def _forward(
        self,
        model_inputs: dict[str, torch.Tensor],
        return_scores: bool = False,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> dict[str, Any]:
        arguments = self._prepare_generate_kwargs(generate_kwargs, **self._forced_tokens(tgt_lang))
        output = self.model.generate(
            **model_inputs, **arguments, return_dict_in_generate=True, output_scores=return_scores
        )
        rows = model_inputs["input_ids"].shape[0]
        result = {"sequences": output.sequences.unflatten(0, (rows, -1))}  # (batch, n, target)
        if return_scores:
            result["scores"] = self._scores(output, arguments).unflatten(0, (rows, -1))
        return result

    def _scores(self, output: Any, arguments: dict[str, Any]) -> torch.Tensor:
        """The score of each output, (rows,): Σ log p / length ** length_penalty."""
        if getattr(output, "sequences_scores", None) is not None:
            return output.sequences_scores
        sequences = output.sequences[:, 1:]  # without the start token
        # not `compute_transition_scores`, which assumes that the target vocabulary is as large as the source vocabulary
        token_scores = [step.log_softmax(-1).gather(1, sequences[:, t : t + 1]) for t, step in enumerate(output.scores)]
        lengths = self._lengths(sequences)
        is_output = torch.arange(sequences.shape[1], device=sequences.device) < lengths[:, None]
        config = arguments.get("generation_config") or self.model.generation_config
        penalty = arguments.get("length_penalty", config.length_penalty)
        penalty = 1.0 if penalty is None else penalty
        # masked, not added: after the end token, the log-probability of padding may be -inf
        return torch.cat(token_scores, 1).masked_fill(~is_output, 0).sum(1) / lengths**penalty

    @property
    def _ends(self) -> torch.Tensor:
        """The ids of the end tokens."""
        end = self.model.generation_config.eos_token_id
        return torch.tensor(self.target_tokenizer.eos_token_id if end is None else end).flatten()

    def _lengths(self, sequences: torch.Tensor) -> torch.Tensor:
        """The number of tokens of each row, including its end token."""
        ended = torch.isin(sequences, self._ends.to(sequences.device)).cumsum(1) > 0
        return (~ended).sum(1) + ended.any(1)

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        sequences = model_outputs["sequences"][0][:, 1:]  # (n, target), without the start token
        records = []
        for row, length in enumerate(self._lengths(sequences).tolist()):
            tokens, record = sequences[row, :length], {}
            if return_tensors:
                record[f"{self.return_name}_token_ids"] = tokens
            if return_text or (return_text is None and not return_tensors):
                record[f"{self.return_name}_text"] = decode_text(
                    self.target_tokenizer, tokens.tolist(), clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            if "scores" in model_outputs:
                record["score"] = float(model_outputs["scores"][0][row])
                record["finished"] = bool(length) and bool(torch.isin(tokens[-1], self._ends))
            records.append(record)
        return records

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save the model, its tokenizers and this file: a folder that needs nothing but transformers."""
        folder, config = Path(save_directory), self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines(PIPELINES)
        self.model.save_pretrained(folder, **kwargs)
        self.tokenizer.save_pretrained(folder, **kwargs)
        shutil.copyfile(__file__, folder / Path(__file__).name)


class TranslationPipeline(TextToTextPipeline):
    """`pipe("…")` → `[{"translation_text": "…"}]`; the task may be named translation_xx_to_yy."""

    return_name = "translation"
    needs_languages = True


class SummarizationPipeline(TextToTextPipeline):
    """`pipe("…")` → `[{"summary_text": "…"}]`."""

    return_name = "summary"


class Text2TextGenerationPipeline(TextToTextPipeline):
    """`pipe("…")` → `[{"generated_text": "…"}]`."""

    return_name = "generated"


PIPELINES: dict[str, type[TextToTextPipeline]] = {
    TRANSLATION: TranslationPipeline,
    "summarization": SummarizationPipeline,
    "text2text-generation": Text2TextGenerationPipeline,
}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The value of `config.custom_pipelines`: where `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[DIRECTION.sub(TRANSLATION, task)].__name__}",
            "pt": ["AutoModelForSeq2SeqLM"],
            "default": {},
            "type": "text",
        }
        for task in tasks
    }
