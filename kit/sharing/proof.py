"""The proof that a folder works elsewhere: a process without kit loads it, and computes what the run's model does."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from kit.errors import HubError
from kit.pipelines.dialogue import reads_turns
from kit.sharing import standalone as alone
from kit.sharing.folder import is_adapter

EXAMPLES = 4
LONGEST = 200  # characters
_TOLERANCE = 1e-5
_TEXT_COLUMNS = ("source", "text", "prompt", "question", "tokens")


@dataclass(frozen=True)
class ProbeRequest:
    """What a model is asked, here and elsewhere."""

    model: str
    """A folder, or an id on the Hub."""
    loader: str
    """The class of transformers that loads it."""
    inputs: dict[str, Tensor]
    texts: list[str] = field(default_factory=list)
    pipeline: str = ""
    calls: list[Any] = field(default_factory=list)
    base: str = ""
    """The base model where `model` is an adapter with the configuration of the whole beside it."""


@dataclass(frozen=True)
class ProbeOutput:
    """What a model computes: tensors by name, the tokens of texts, and what its pipeline answers."""

    tensors: dict[str, Tensor]
    texts: dict[str, Any]


def run_standalone(questions: Sequence[ProbeRequest], environment: dict[str, str] | None = None) -> list[ProbeOutput]:
    """The answers of models that one process without kit loads; it has no network unless `environment` gives it."""
    with tempfile.TemporaryDirectory(prefix="kit-alone-") as name:
        place = Path(name)
        requests = []
        for number, question in enumerate(questions):
            inputs, output = place / f"inputs-{number}.safetensors", place / f"output-{number}"
            save_file({name: tensor.contiguous() for name, tensor in question.inputs.items()}, inputs)
            requests.append(
                {
                    "model": question.model,
                    "loader": question.loader,
                    "base": question.base,
                    "texts": question.texts,
                    "pipeline": question.pipeline,
                    "calls": question.calls,
                    "inputs": str(inputs),
                    "output": str(output),
                }
            )
        asked = {"threads": torch.get_num_threads(), "requests": requests}
        (place / "requests.json").write_text(json.dumps(asked), encoding="utf-8")
        offline = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(place / "modules"), "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run(
            [sys.executable, "-P", alone.__file__, str(place / "requests.json")],
            cwd=place,  # not where the user works: what lies there must not be imported
            env={**_without_tokens(), **offline, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            raise HubError(f"a process without kit cannot load {', '.join(q.model for q in questions)}: {last}")
        return [
            ProbeOutput(
                load_file(place / f"output-{number}" / "computed.safetensors"),
                json.loads((place / f"output-{number}" / "texts.json").read_text(encoding="utf-8")),
            )
            for number in range(len(questions))
        ]


def _without_tokens() -> dict[str, str]:
    """This environment without access to anybody's account."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_TOKEN")}


def run_in_process(question: ProbeRequest, model: PreTrainedModel, pipe: Any = None) -> ProbeOutput:
    """The answer of the model of a run, with kit's own classes."""
    texts: dict[str, Any] = {}
    if question.texts:
        texts["tokens"] = AutoTokenizer.from_pretrained(question.model, trust_remote_code=False)(question.texts)[
            "input_ids"
        ]
    if question.calls:
        texts["answers"] = alone.answered(pipe, question.calls)
    return ProbeOutput(alone.computed(model, question.inputs), texts)


def difference(here: ProbeOutput, there: ProbeOutput) -> str | None:
    """What differs between two answers, if anything does by more than rounding."""
    if here.tensors.keys() != there.tensors.keys():
        return f"outputs {', '.join(sorted(here.tensors.keys() ^ there.tensors.keys()))}"
    for name, tensor in here.tensors.items():
        other = there.tensors[name]
        if tensor.shape != other.shape:
            return f"the shape of {name}"
        if not torch.allclose(tensor.double(), other.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            return name
    return next((name for name, value in here.texts.items() if there.texts.get(name) != value), None)


def loader_of(config: dict[str, Any]) -> str:
    """The class of transformers that loads the model of a configuration: an Auto class for one with code of its own."""
    own = [name for name in config.get("auto_map", {}) if name.startswith("AutoModelFor")]
    architecture = (config.get("architectures") or ["AutoModel"])[0]
    return own[0] if own else architecture if hasattr(transformers, architecture) else "AutoModel"


def example_inputs(model: PreTrainedModel, tokens: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Inputs that a model can read: tokens, where it reads text, or else numbers that are drawn by a seed."""
    random = torch.Generator().manual_seed(0)
    config = model.config
    if tokens is not None:
        limit = min(getattr(config, "max_position_embeddings", None) or 64, 64)
        inputs = {name: tensor[:, :limit] for name, tensor in tokens.items()}
        if reads_turns(config):  # (batch, turns, tokens)
            inputs = {name: tensor.unsqueeze(1) for name, tensor in inputs.items()}
    elif model.main_input_name == "past_values":
        sizes = {"values": config.value_size, "context": config.context_size}
        return {
            f"{when}_{name}": torch.randn(2, steps, size, generator=random)
            for when, steps in (("past", 6), ("future", 3))
            for name, size in sizes.items()
            if size
        }
    else:
        size = config.image_size
        inputs = {model.main_input_name: torch.randn(2, config.num_channels, size, size, generator=random)}
    if config.is_encoder_decoder or model.main_input_name == "pixel_values":
        start = getattr(config, "decoder_start_token_id", None) or 0
        rows = len(next(iter(inputs.values())))
        rest = torch.randint(model.get_output_embeddings().weight.shape[0], (rows, 5), generator=random)
        inputs["decoder_input_ids"] = torch.cat([torch.full((rows, 1), start), rest], dim=1)
    return inputs


def example_rows(run: Path) -> list[dict[str, Any]]:
    """A few examples of a run, from what it predicted at its end."""
    for split in ("test", "validation"):
        file = run / "predictions" / f"{split}.jsonl"
        if file.is_file() and file.stat().st_size:
            with file.open(encoding="utf-8") as lines:
                return [json.loads(line) for line, _ in zip(lines, range(EXAMPLES), strict=False)]
    return []


def example_texts(rows: list[dict[str, Any]]) -> list[str]:
    """The texts of examples, cut to a length that keeps the check short."""
    found = [row[name] for row in rows for name in _TEXT_COLUMNS if row.get(name)][:EXAMPLES]
    texts = [" ".join(text) if isinstance(text, list) else str(text) for text in found]
    return [text[:LONGEST] for text in texts] or ["one", "one two", "one two three"]


def pipeline_calls(config: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, list[Any]]:
    """A pipeline whose code is saved with the model, and what to ask it about the examples."""
    tasks = config.get("custom_pipelines") or {}
    if "translation" in tasks:
        directed = any("direction" in row for row in rows)  # which the pipeline would have to be told
        return "translation", [] if directed else [row["source"][:LONGEST] for row in rows if row["source"].strip()]
    if "question-answering" in tasks:
        return "question-answering", [{key: row[key] for key in ("question", "context")} for row in rows]
    return "", []


def check_run(folder: Path, run: Path, model_folder: Path) -> str:
    """Ask the model of a run here, and the folder that is to be shared in a process without kit.

    Returns what was compared, as a sentence. Raises HubError if the answers differ.
    """
    from kit.pretrained.adapters import MODEL_CONFIG, adapted_class, base_of
    from kit.pretrained.loading import load_model, model_place
    from kit.pretrained.pipelines import pipeline

    rows = example_rows(run)
    texts = example_texts(rows) if (folder / "tokenizer_config.json").is_file() else []
    if is_adapter(folder):
        if not (folder / MODEL_CONFIG).is_file():
            return f"not tried without kit: an adapter by peft alone, without {MODEL_CONFIG}"
        config, base = {}, model_place(base_of(model_folder))
        loader = adapted_class(model_folder)
    else:
        config, base = json.loads((folder / "config.json").read_text(encoding="utf-8")), ""
        loader = getattr(transformers, loader_of(config))
    model = load_model(loader, model_folder)
    tokens = None
    if texts:
        tokenizer = AutoTokenizer.from_pretrained(model_folder, trust_remote_code=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokens = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    task, calls = pipeline_calls(config, rows)
    inputs = example_inputs(model, tokens)
    here = ProbeRequest(str(model_folder), loader.__name__, inputs, texts, task, calls)
    expected = run_in_process(here, model, pipeline(task, model_folder, device="cpu") if calls else None)
    (found,) = run_standalone([replace(here, model=str(folder), base=base)])
    if wrong := difference(expected, found):
        raise HubError(
            f"nothing was shared: loaded without kit, the model gives other {wrong} than in {run}. Were files in "
            f"{model_folder} changed? `kit verify {run}` looks closer"
        )
    answers = f", {len(calls)} answers of its pipeline" if calls else ""
    return f"loaded without kit, it computes what the run does ({', '.join(expected.tensors)}{answers})"
