"""The proof that a folder works for others: a process without kit loads it, and computes what the run's model does."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from kit.data.text.tokenizer import read_tokenizer
from kit.errors import HubError
from kit.models import MODELS
from kit.pipelines import question_answering
from kit.pipelines.dialogue import reads_turns
from kit.pipelines.text_to_text import TRANSLATION
from kit.pretrained.adapters import MODEL_CONFIG, adapted_class
from kit.pretrained.finite import check_finite
from kit.pretrained.loading import load_model, open_base, quiet_transformers
from kit.pretrained.pipelines import pipeline
from kit.sharing import standalone
from kit.sharing.folder import is_adapter
from kit.sharing.published import check_base_code, own_code
from kit.system.files import read_json, read_json_lines
from kit.system.json_files import write_json
from kit.system.load_errors import one_line_errors
from kit.system.outputs import scratch_folder

MAX_EXAMPLES = 4  # rows that the process without kit computes; a wrong weight or missing file shows in one
MAX_TEXT_LENGTH = 200  # characters
MAX_TOKENS = 64
_TOLERANCE = 1e-5  # float32 rounding: both processes run the same operations, but not necessarily the same kernels
_TEXT_COLUMNS = ("source", "text", "prompt", "question", "tokens")


@dataclass(frozen=True)
class ProbeRequest:
    """What a model computes in both processes."""

    model: str
    """A folder, or an id on the Hub."""
    loader: str
    """The class of transformers to load it with."""
    inputs: dict[str, Tensor]
    texts: list[str] = field(default_factory=list)
    pipeline: str = ""
    calls: list[Any] = field(default_factory=list)
    base: str = ""
    """The base model, if `model` is an adapter with the configuration of the merged model beside it."""


@dataclass(frozen=True)
class ProbeOutput:
    """What a model computed: tensors by name, token ids of texts, and answers of its pipeline."""

    tensors: dict[str, Tensor]
    texts: dict[str, Any]


def run_standalone(probes: Sequence[ProbeRequest], environment: dict[str, str] | None = None) -> list[ProbeOutput]:
    """The outputs of models in one process without kit, which has no network unless `environment` enables it.

    Raises HubError if a model cannot be loaded there.
    """
    with scratch_folder("kit-alone-") as folder:
        requests = []
        for number, probe in enumerate(probes):
            inputs, output = folder / f"inputs-{number}.safetensors", folder / f"output-{number}"
            save_file({name: tensor.contiguous() for name, tensor in probe.inputs.items()}, inputs)
            requests.append(
                {
                    "model": probe.model,
                    "loader": probe.loader,
                    "base": probe.base,
                    "texts": probe.texts,
                    "pipeline": probe.pipeline,
                    "calls": probe.calls,
                    "inputs": str(inputs),
                    "output": str(output),
                }
            )
        job = {"threads": torch.get_num_threads(), "requests": requests}
        write_json(folder / "requests.json", job)
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(folder / "modules"),
            "TRANSFORMERS_VERBOSITY": "error",
        }
        process = subprocess.run(
            [sys.executable, "-P", standalone.__file__, str(folder / "requests.json")],
            cwd=folder,  # not the working directory, whose files must not be imported
            env={**_without_tokens(), **offline, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2] or "it exited without a message"
            raise HubError(f"a process without kit cannot load {', '.join(probe.model for probe in probes)}: {last}")
        return [
            ProbeOutput(
                load_file(folder / f"output-{number}" / "tensors.safetensors"),
                read_json(folder / f"output-{number}" / "texts.json", "the outputs of a probe"),
            )
            for number in range(len(probes))
        ]


def _without_tokens() -> dict[str, str]:
    """This environment without access tokens."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_TOKEN")}


def run_in_process(probe: ProbeRequest, model: PreTrainedModel, pipe: Any = None) -> ProbeOutput:
    """The output of the model of a run in this process, with kit's own classes."""
    texts: dict[str, Any] = {}
    if probe.texts:
        texts["tokens"] = read_tokenizer(probe.model)(probe.texts)["input_ids"]
    if probe.calls:
        texts["answers"] = standalone.pipeline_answers(pipe, probe.calls)
    with quiet_transformers():  # equal inputs matter here, not that a causal model is padded on the right
        return ProbeOutput(standalone.model_outputs(model, probe.inputs), texts)


def difference(expected: ProbeOutput, actual: ProbeOutput) -> str | None:
    """What differs between two outputs by more than rounding, if anything."""
    if expected.tensors.keys() != actual.tensors.keys():
        return f"outputs {', '.join(sorted(expected.tensors.keys() ^ actual.tensors.keys()))}"
    for name, tensor in expected.tensors.items():
        other = actual.tensors[name]
        if tensor.shape != other.shape:
            return f"the shape of {name}"
        if not torch.allclose(tensor.double(), other.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            return name
    return next((name for name, value in expected.texts.items() if actual.texts.get(name) != value), None)


def loader_of(config: dict[str, Any]) -> str:
    """The class of transformers that loads a model: an Auto class if it has its own code, else its architecture."""
    auto_map, architectures = config.get("auto_map"), config.get("architectures")
    names = [name for name in auto_map if name.startswith("AutoModelFor")] if isinstance(auto_map, dict) else []
    names += filter(None, map(str, architectures)) if isinstance(architectures, list) else []
    return next((name for name in names if hasattr(transformers, name)), "AutoModel")


def example_inputs(model: PreTrainedModel, tokens: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Inputs for a model: `tokens` if it reads text, otherwise random images or series, and random decoder inputs.

    Tokens are truncated to MAX_TOKENS and to the positions of the model, of which generated tokens need some, too, if
    they follow the input. The seed is fixed.
    """
    random = torch.Generator().manual_seed(0)
    config = model.config
    if tokens is not None:
        positions = getattr(config, "max_position_embeddings", None) or MAX_TOKENS
        continues = model.can_generate() and not config.is_encoder_decoder
        limit = max(1, min(MAX_TOKENS, positions - standalone.NEW_TOKENS if continues else positions))
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
    """A few examples of a run, from its final predictions."""
    for split in ("test", "validation"):
        file = run / "predictions" / f"{split}.jsonl"
        if file.is_file() and file.stat().st_size:
            return [row for _, row in islice(read_json_lines(file, "predictions"), MAX_EXAMPLES)]
    return []


def example_texts(rows: list[dict[str, Any]]) -> list[str]:
    """The texts of examples, truncated to keep the check short."""
    cells = [row[name] for row in rows for name in _TEXT_COLUMNS if row.get(name)][:MAX_EXAMPLES]
    texts = [" ".join(map(str, text)) if isinstance(text, list) else str(text) for text in cells]
    return [text[:MAX_TEXT_LENGTH] for text in texts] or ["one", "one two", "one two three"]


def pipeline_calls(config: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, list[Any]]:
    """The task of a pipeline whose code is saved with the model, and its inputs for the examples."""
    tasks = config.get("custom_pipelines")
    tasks = tasks if isinstance(tasks, dict) else {}
    if TRANSLATION in tasks:
        directed = any("direction" in row for row in rows)  # the pipeline would need languages
        texts = [] if directed else [row.get("source") for row in rows]
        return TRANSLATION, [text[:MAX_TEXT_LENGTH] for text in texts if isinstance(text, str) and text.strip()]
    if question_answering.TASK in tasks:
        questions = [{key: row.get(key) for key in ("question", "context")} for row in rows]
        return question_answering.TASK, [row for row in questions if all(isinstance(row[key], str) for key in row)]
    return "", []


@contextmanager
def base_with_code(base: Path | None) -> Iterator[str]:
    """The folder of an adapter's base model within the block, with kit's code, which is not downloaded."""
    if base is None or read_json(base / "config.json", "a model configuration").get("model_type") not in MODELS:
        yield str(base or "")
        return
    with scratch_folder("kit-base-") as temporary:
        for file in (path for path in base.iterdir() if path.suffix != ".py"):
            (temporary / file.name).symlink_to(file.resolve())
        for name, source in own_code().items():
            shutil.copyfile(source, temporary / name)
        yield str(temporary)


def reads_text(model: PreTrainedModel) -> bool:
    """Whether the input of a model is tokens, and not an image or a series."""
    return bool(model.main_input_name == "input_ids")


def encode(model_folder: Path, texts: list[str]) -> dict[str, Tensor]:
    """A batch of texts, as the tokenizer of a model encodes it."""
    tokenizer = read_tokenizer(str(model_folder))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return dict(tokenizer(texts, padding=True, return_tensors="pt"))


def check_run(folder: Path, run: Path, model_folder: Path) -> str:
    """Compare the model of a run in this process with the folder to publish in a process without kit.

    Returns what was compared, as a sentence. Raises HubError if the outputs differ, and RunError if a weight is not a
    finite number.
    """
    rows = example_rows(run)
    texts = example_texts(rows) if (folder / "tokenizer_config.json").is_file() else []
    if is_adapter(folder):
        if not (folder / MODEL_CONFIG).is_file():
            return f"not checked without kit: an adapter of peft alone, without {MODEL_CONFIG}"
        config, base = {}, open_base(folder).path  # what the published folder names, not what the run was trained on
        check_base_code(base)
        loader = adapted_class(model_folder)
    else:
        config, base = read_json(folder / "config.json", "a model configuration"), None
        loader = getattr(transformers, loader_of(config))
    model = load_model(loader, model_folder)
    check_finite(model, "nothing was published")
    task, calls = pipeline_calls(config, rows)
    with one_line_errors(model_folder):  # a damaged configuration or tokenizer may fail here first
        inputs = example_inputs(model, encode(model_folder, texts) if reads_text(model) and texts else None)
        probe = ProbeRequest(str(model_folder), loader.__name__, inputs, texts, task, calls)
        expected = run_in_process(probe, model, pipeline(task, model_folder, device="cpu") if calls else None)
    with base_with_code(base) as loadable:
        (actual,) = run_standalone([replace(probe, model=str(folder), base=loadable)])
    if name := difference(expected, actual):
        raise HubError(
            f"nothing was published: loaded without kit, the model computes other {name} than in {run}. Were files in "
            f"{model_folder} changed? `kit verify {run}` checks the model in detail"
        )
    answers = f", {len(calls)} answers of its pipeline" if calls else ""
    return f"loaded without kit, it computes what the run does ({', '.join(expected.tensors)}{answers})"
