"""The pipelines `translation`, `summarization` and `text2text-generation`.

This file stands alone: it is saved with a model for those who do not have kit.
"""

import re
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, Pipeline, PreTrainedTokenizerBase

TRANSLATION = "translation"
DIRECTION = re.compile(rf"{TRANSLATION}_(.+)_to_(.+)")

# Notes that kit leaves in tokenizer_config.json; its own code for them is kit/data/languages.py.
TAGGED = "target_languages"
CODES = "language_names"
PREFIX = "source_prefix"


class TextToTextPipeline(Pipeline):
    """From text to text: `pipe("…")` → `[{"…_text": "…"}]`, `pipe(["…", "…"])` → one such dict each.

    A generator or a dataset gives an iterator over such lists, and is read as it goes. With `num_return_sequences=n`
    each input gets a list of n dicts, best first; `return_scores=True` adds `score`, the sum of log-probabilities
    divided by length ** length_penalty, and `finished`, whether the output ended by itself. `return_tensors=True` gives
    `…_token_ids` instead of the text, without what the decoder starts from. `truncation=True` cuts an input to what the
    model can read. `src_lang` and `tgt_lang` tell the languages to models that have several. Any other argument is one
    of `generate()`; all of them can also be given when the pipeline is made.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=256, num_beams=4)
    return_name: str
    must_be_told = False
    """Whether a model with language codes is refused when neither the caller nor the model says which."""

    def __init__(self, *args: Any, target_tokenizer: PreTrainedTokenizerBase | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config = self.model.config
        if not config.is_encoder_decoder:
            raise ValueError(f"{self.task} needs a model with encoder and decoder, not {type(self.model).__name__}")
        self._check_codes(self.tokenizer("")["input_ids"])
        self.target_tokenizer = target_tokenizer or self._read_target_tokenizer()
        named = DIRECTION.fullmatch(self.task)
        self.direction = named.groups() if named else (None, None)
        # what T5 and others say about each task: a prefix, and settings of generate()
        own = dict((getattr(config, "task_specific_params", None) or {}).get(self.task, {}))
        prefix = own.pop("prefix", None) or getattr(config, "prefix", None) or ""
        self.prefix: str = self.tokenizer.init_kwargs.get(PREFIX, prefix)
        if "max_length" in own:
            self._generation_defaults.pop("max_new_tokens", None)
        self._generation_defaults.update(own)
        if named and not own and not self._is_tagged and not self._has_codes:
            warnings.warn(
                f"The model cannot be told languages: {self.task} does what translation does, in whatever direction "
                "the model was trained.",
                stacklevel=2,
            )

    def _read_target_tokenizer(self) -> PreTrainedTokenizerBase:
        if not getattr(self.model.config, "separate_vocabularies", False):
            return self.tokenizer
        # two vocabularies: the source's tokenizer is at the root, the target's in a folder beside the weights
        place = self.tokenizer.name_or_path
        commit = getattr(self.model.config, "_commit_hash", None) if place == self.model.name_or_path else None
        return AutoTokenizer.from_pretrained(
            place, subfolder="target_tokenizer", revision=commit or "main", trust_remote_code=False
        )

    # ---- languages ---------------------------------------------------------------------------------------------------

    @property
    def _is_tagged(self) -> bool:
        """Whether a tag such as <2en> in front of the source names the language to write."""
        return bool(self.tokenizer.init_kwargs.get(TAGGED))

    @property
    def _has_codes(self) -> bool:
        """Whether the tokenizer encodes by language, as those of mBART-50, NLLB and M2M do."""
        return hasattr(self.tokenizer, "set_tgt_lang_special_tokens")

    def _check_codes(self, ids: list[int]) -> None:
        """Raise ValueError if a tokenizer with codes ends a text with one: the model starts its output from there."""
        if self._has_codes and ids[-1:] != [self.tokenizer.eos_token_id]:
            raise ValueError(
                f"{self.task}: {type(self.tokenizer).__name__} puts the language code behind the text, as in "
                "first-generation mBART, which this pipeline does not support. Use mBART-50, NLLB or M2M-100 (NLLB "
                "without legacy_behaviour in tokenizer_config.json)"
            )

    def _code(self, side: str, language: str | None) -> str | None:
        """The code of a language, or of the default of a side ("src" or "tgt")."""
        notes = self.tokenizer.init_kwargs
        names = notes.get(CODES) or {}
        name = language or self.direction[side == "tgt"] or (None if names else notes.get(f"{side}_lang"))
        if name is None:
            if self.must_be_told or names:
                raise ValueError(f"{self.task}: this model must be told {side}_lang")
            return None
        code = names.get(name, name)
        if code not in self._codes:
            known = ", ".join(list(names or self._codes)[:8])
            raise ValueError(f'{self.task}: the model has no {side}_lang "{name}" (it has {known}, …)')
        return code

    @property
    def _codes(self) -> Collection[str]:
        return getattr(self.tokenizer, "lang_code_to_token", None) or self.tokenizer.all_special_tokens

    def _in_front(self, tgt_lang: str | None) -> list[int]:
        """Tokens in front of the source."""
        if not self._is_tagged:
            return []
        known = self.tokenizer.init_kwargs[TAGGED]
        name = tgt_lang or self.direction[1] or (known[0] if len(known) == 1 else None)
        if name not in known:
            raise ValueError(f"{self.task}: tgt_lang must be one of {', '.join(known)}, not {name}")
        return [self.tokenizer.convert_tokens_to_ids(f"<2{name}>")]

    @contextmanager
    def _reading(self, src_lang: str | None) -> Iterator[None]:
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

    def _first_tokens(self, tgt_lang: str | None) -> dict[str, int]:
        """What `generate()` must be told for outputs in a language."""
        code = self._code("tgt", tgt_lang) if self._has_codes else None
        if code is None:
            return {}
        tokenizer = self.tokenizer
        by_name = hasattr(tokenizer, "lang_code_to_token")
        token = tokenizer.get_lang_id(code) if by_name else tokenizer.convert_tokens_to_ids(code)
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
                f"{self.task}: src_lang and tgt_lang are for models of several languages; this has one pair"
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
        given = [{k: v for k, v in part.items() if v is not None} for part in (preprocess, forward, postprocess)]
        return given[0], {**given[1], **generate_kwargs}, given[2]

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, Sequence) or isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        # a list, or a column of a dataset; an empty one would be looked into for chat messages
        outputs = super().__call__(list(inputs), **kwargs) if len(inputs) else []
        return [found[0] for found in outputs] if all(len(found) == 1 for found in outputs) else outputs

    def preprocess(
        self,
        inputs: str,
        truncation: bool | str = False,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> dict[str, torch.Tensor]:
        if not isinstance(inputs, str):
            raise ValueError(f"{self.task} takes a text or a list of texts, not {type(inputs).__name__}")
        in_front = self._in_front(tgt_lang)
        limit = {"max_length": self._longest_source() - len(in_front)} if truncation else {}
        with self._reading(src_lang):
            ids = self.tokenizer(self.prefix + inputs, truncation=truncation, **limit)["input_ids"]
        self._check_codes(ids)  # not every tokenizer has a language before it is given one
        input_ids = torch.tensor([in_front + ids], dtype=torch.long)
        if input_ids.shape[1] == 0:  # an empty text without an end marker: one masked token
            pad = torch.full((1, 1), self.tokenizer.pad_token_id)
            return {"input_ids": pad, "attention_mask": torch.zeros_like(pad)}
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    def _longest_source(self) -> int:
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
        arguments = self._prepare_generate_kwargs(generate_kwargs, **self._first_tokens(tgt_lang))
        output = self.model.generate(
            **model_inputs, **arguments, return_dict_in_generate=True, output_scores=return_scores
        )
        rows = model_inputs["input_ids"].shape[0]
        result = {"sequences": output.sequences.unflatten(0, (rows, -1))}  # (batch, n, target)
        if return_scores:
            result["scores"] = self._scores(output, arguments).unflatten(0, (rows, -1))
        return result

    def _scores(self, output: Any, arguments: dict[str, Any]) -> torch.Tensor:
        if getattr(output, "sequences_scores", None) is not None:
            return output.sequences_scores
        sequences = output.sequences[:, 1:]  # without START
        # not `compute_transition_scores`: it takes the target's vocabulary for as large as the source's
        taken = [step.log_softmax(-1).gather(1, sequences[:, t : t + 1]) for t, step in enumerate(output.scores)]
        lengths = self._lengths(sequences)
        real = torch.arange(sequences.shape[1], device=sequences.device) < lengths[:, None]
        given = arguments.get("generation_config") or self.model.generation_config
        penalty = arguments.get("length_penalty", given.length_penalty)
        # nothing is added behind the end, where the probability of padding may be none at all
        return torch.cat(taken, 1).masked_fill(~real, 0).sum(1) / lengths ** (1.0 if penalty is None else penalty)

    @property
    def _ends(self) -> torch.Tensor:
        end = self.model.generation_config.eos_token_id
        return torch.tensor(self.target_tokenizer.eos_token_id if end is None else end).flatten()

    def _lengths(self, sequences: torch.Tensor) -> torch.Tensor:
        """Number of tokens of each row, up to and with its end marker."""
        ended = torch.isin(sequences, self._ends.to(sequences.device)).cumsum(1) > 0
        return (~ended).sum(1) + ended.any(1)

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        sequences = model_outputs["sequences"][0][:, 1:]  # (n, target) without START
        records = []
        for row, length in enumerate(self._lengths(sequences).tolist()):
            tokens, record = sequences[row, :length], {}
            if return_tensors:
                record[f"{self.return_name}_token_ids"] = tokens
            if return_text or (return_text is None and not return_tensors):
                record[f"{self.return_name}_text"] = self.target_tokenizer.decode(
                    tokens.tolist(),
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
            if "scores" in model_outputs:
                record["score"] = float(model_outputs["scores"][0][row])
                record["finished"] = bool(length) and bool(torch.isin(tokens[-1], self._ends))
            records.append(record)
        return records

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Write the model, its tokenizers and this file: a folder that needs nothing but transformers."""
        folder, config = Path(save_directory), self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines(PIPELINES)
        self.model.save_pretrained(folder, **kwargs)
        self.tokenizer.save_pretrained(folder, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(folder / "target_tokenizer", **kwargs)
        shutil.copyfile(__file__, folder / Path(__file__).name)


class TranslationPipeline(TextToTextPipeline):
    """`pipe("…")` → `[{"translation_text": "…"}]`; the task may be named translation_xx_to_yy."""

    return_name = "translation"
    must_be_told = True


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
    """What `config.custom_pipelines` says, so that `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[DIRECTION.sub(TRANSLATION, task)].__name__}",
            "pt": ["AutoModelForSeq2SeqLM"],
            "default": {},
            "type": "text",
        }
        for task in tasks
    }
