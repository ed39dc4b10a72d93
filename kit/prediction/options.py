"""What users ask of `kit generate`, and the rejection of options that a model does not support."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kit.data.formats.lines import SURROGATE
from kit.decoding.settings import GenerationSettings, saved_settings
from kit.errors import KitError

WITHOUT_BEAMS = "on greedy search (--num-beams 1)"
SAMPLING = frozenset({"sample", "temperature", "top_p", "seed"})
"""The fields of GenerateOptions that models support whose tokens can be drawn."""


@dataclass(frozen=True)
class GenerateOptions:
    """Options of `kit generate`; None where the model decides."""

    n_best: int = 1
    num_beams: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    split_sentences: str | None = None
    attention: Path | None = None
    """PNG file for the attention of the first line."""
    scores: bool = True
    tokens_per_batch: int = 8192
    portion_size: int | None = None
    """Number of lines in memory at a time; 1 where a user waits for the output of each line."""

    def search_changes(self) -> dict[str, Any]:
        """The settings of search that were chosen."""
        names = ("num_beams", "max_new_tokens", "length_penalty", "no_repeat_ngram_size")
        return {name: getattr(self, name) for name in names} | {"num_return_sequences": self.n_best}

    def sampling_changes(self) -> dict[str, Any]:
        """The settings of sampling that were chosen. Raises KitError for options that would have no effect with it, or
        without it."""
        drawing = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        for name, value in drawing.items():
            if value is not None and not self.sample:
                raise KitError(f"--{name.replace('_', '-')} has no effect without --sample")
        if self.sample and (self.num_beams or 1) > 1:
            raise KitError("--sample draws tokens and --num-beams searches for the most probable text: use one of them")
        if self.sample and self.length_penalty is not None:
            raise KitError("--length-penalty has no effect with --sample. Leave it out")
        if self.sample and self.attention is not None:
            raise KitError("--attention shows the output of a search, and --sample draws others: use one of them")
        return {name: value for name, value in drawing.items() if value is not None} | {"do_sample": self.sample}

    def seq2seq_settings(self, model: Any, **tokens: Any) -> GenerationSettings:
        """The settings saved with an encoder-decoder, with these changes. Raises KitError for an option that would have
        no effect."""
        sampling = self.sampling_changes()
        num_beams = 1 if self.sample else self.beams(model.generation_config.num_beams or 1)
        settings = saved_settings(model, **{**self.search_changes(), "num_beams": num_beams, **sampling, **tokens})
        if self.length_penalty is not None and num_beams == 1 and not self.scores:
            raise KitError(f"--length-penalty has no effect {WITHOUT_BEAMS}, and without --scores or --json")
        return settings

    def beams(self, default: int) -> int:
        """The number of beams; unless it was chosen, at least as many as outputs. Raises KitError if more outputs than
        beams were chosen."""
        if self.num_beams is None:
            return max(default, self.n_best)
        if self.n_best > self.num_beams:
            raise KitError(
                f"--n-best {self.n_best}: a search with --num-beams {self.num_beams} has at most {self.num_beams} "
                f"output{'s' * (self.num_beams > 1)} for a line. Raise --num-beams, or leave it out"
            )
        return self.num_beams


@dataclass(frozen=True)
class PlotOptions:
    """Options of `kit plot`; None where there is a default."""

    sentence: str | None = None
    target: str | None = None
    kind: str | None = None
    layer: str | None = None
    head: str | None = None
    image: Path | None = None
    source_language: str | None = None
    target_language: str | None = None
    output: Path | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        for name in ("sentence", "target"):
            if SURROGATE.search(getattr(self, name) or ""):  # how Python represents an undecodable byte of an argument
                raise KitError(f"--{name}: the text is not valid UTF-8")

    def require(self, name: str, *dependent: str) -> None:
        """Raise KitError if a dependent option is given without the option that it refers to."""
        for other in dependent:
            if getattr(self, name) is None and getattr(self, other) is not None:
                raise KitError(f"--{other.replace('_', '-')} needs --{name}, which it refers to")


COMMON_OPTIONS = frozenset(
    {
        "n_best", "num_beams", "max_new_tokens", "length_penalty", "no_repeat_ngram_size", "scores",
        "tokens_per_batch", "portion_size",
    }
)  # fmt: skip
"""The fields of GenerateOptions that every model that writes text supports."""


def reject_unsupported(options: Any, supported: Collection[str], model: str, remedy: str = "Leave it out") -> None:
    """Raise KitError for the first option that was given, differs from its default and is not supported."""
    for option in fields(options):
        if option.name not in supported and getattr(options, option.name) != option.default:
            raise KitError(f"--{option.name.replace('_', '-')} has no effect on {model}. {remedy}")
