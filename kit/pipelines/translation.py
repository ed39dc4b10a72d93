"""The `translation` pipeline. This file stands alone: it is saved with a model for those who do not have kit."""

from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, Pipeline


class TranslationPipeline(Pipeline):
    """From text to text: `pipe("…")` → `[{"translation_text": "…"}]`, `pipe(["…", "…"])` → one such dict each.

    With `num_return_sequences=n` each input gets a list of n dicts, best first; `return_scores=True` adds `score`, the
    sum of log-probabilities divided by length ** length_penalty, and `finished`, whether the output ended by itself.
    Any other argument of `generate()` can be given too.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=256, num_beams=4)
    return_name = "translation"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.target_tokenizer = self.tokenizer
        if getattr(self.model.config, "separate_vocabularies", False):
            # two vocabularies: the source's tokenizer is at the root, the target's in a folder beside the weights
            self.target_tokenizer = AutoTokenizer.from_pretrained(
                self.tokenizer.name_or_path, subfolder="target_tokenizer"
            )

    def _sanitize_parameters(
        self, return_scores: bool | None = None, truncation: bool | None = None, **generate_kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess = {} if truncation is None else {"truncation": truncation}
        forward: dict[str, Any] = dict(generate_kwargs)
        if return_scores is not None:
            forward["return_scores"] = return_scores
        return preprocess, forward, {}

    def __call__(self, inputs: str | list[str], **kwargs: Any) -> Any:
        outputs = super().__call__(inputs, **kwargs)
        if isinstance(inputs, list) and all(len(found) == 1 for found in outputs):
            return [found[0] for found in outputs]
        return outputs

    def preprocess(self, inputs: str, truncation: bool = False) -> dict[str, torch.Tensor]:
        if not isinstance(inputs, str):
            raise ValueError(f"the translation pipeline takes a text or a list of texts, not {type(inputs).__name__}")
        encoded = self.tokenizer(inputs, return_tensors="pt", truncation=truncation)
        encoded.pop("token_type_ids", None)
        if encoded["input_ids"].shape[1] == 0:  # an empty text without an end marker: one masked token
            pad = torch.full((1, 1), self.tokenizer.pad_token_id)
            return {"input_ids": pad, "attention_mask": torch.zeros_like(pad)}
        return encoded

    def _forward(
        self, model_inputs: dict[str, torch.Tensor], return_scores: bool = False, **generate_kwargs: Any
    ) -> dict[str, Any]:
        arguments = self._prepare_generate_kwargs(generate_kwargs)
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
        return (torch.cat(taken, 1) * real).sum(1) / lengths ** (1.0 if penalty is None else penalty)

    def _lengths(self, sequences: torch.Tensor) -> torch.Tensor:
        """Number of tokens of each row, up to and with its end marker."""
        ended = (sequences == self.target_tokenizer.eos_token_id).cumsum(1) > 0
        return (~ended).sum(1) + ended.any(1)

    def postprocess(self, model_outputs: dict[str, Any]) -> list[dict[str, Any]]:
        sequences = model_outputs["sequences"][0][:, 1:]  # (n, target) without START
        records = []
        for row, length in enumerate(self._lengths(sequences).tolist()):
            tokens = sequences[row, :length].tolist()
            text = self.target_tokenizer.decode(tokens, skip_special_tokens=True)
            record: dict[str, Any] = {f"{self.return_name}_text": text}
            if "scores" in model_outputs:
                record["score"] = float(model_outputs["scores"][0][row])
                record["finished"] = bool(tokens) and tokens[-1] == self.target_tokenizer.eos_token_id
            records.append(record)
        return records
