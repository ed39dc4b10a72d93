"""Adapters of peft: a few trained weights on top of a frozen pretrained model.

They are added to the model in place, so that training, evaluation and decoding see the same `PreTrainedModel`. The
folder of an adapter names its base model and has no `config.json`, by which transformers recognizes a whole model. The
config, with the labels of a head, is in `model_config.json` instead.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils.peft_utils import find_adapter_config_file

from kit.errors import RecipeError, RunError, did_you_mean
from kit.hub.names import RepoRef
from kit.pretrained.finite import check_finite
from kit.recipe.model import PeftSection
from kit.system.files import read_json

MODEL_CONFIG = "model_config.json"
"""The file in an adapter's folder with the config of the adapted model."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
AUTO_CLASSES: dict[str, Any] = {
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
    "QUESTION_ANS": AutoModelForQuestionAnswering,
    "CAUSAL_LM": AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": AutoModelForSeq2SeqLM,
}
PEFT_TYPES = ("LORA", "IA3")
"""The types of adapters that kit trains and loads; peft counts DoRA as LORA."""
HEADS = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}
"""For each task type, how the names of heads end that peft always trains and expects in an adapter's folder."""


def adapter_config_file(folder: str | Path) -> Path | None:
    """The adapter_config.json of a folder that holds an adapter; None if it holds a whole model."""
    if (Path(folder) / "config.json").is_file():
        return None
    file = find_adapter_config_file(str(folder))
    return None if file is None else Path(file)


def add_adapter(
    model: PreTrainedModel, section: PeftSection, task_type: str, base: RepoRef | str, heads: Sequence[str]
) -> PreTrainedModel:
    """Add a new adapter to a model; only its weights and the modules named `heads` are trainable.

    `base` is the base model: a repository on the Hub, or a folder. Raises RecipeError if a name in the recipe matches
    no module that can be adapted.
    """
    saved = modules_to_save(model, section, task_type, heads)
    targets = target_modules(model, section, saved)
    arguments: dict[str, Any] = {
        "task_type": task_type,
        "target_modules": targets,
        "modules_to_save": saved or None,
        # transposed weights, as in GPT-2
        "fan_in_fan_out": any(isinstance(model.get_submodule(name), Conv1D) for name in targets),
    }
    model.add_adapter(peft_config(section, model, arguments))
    config = model.peft_config["default"]
    # as peft stores them, so that whoever loads the adapter finds this base model
    config.base_model_name_or_path = base.repo if isinstance(base, RepoRef) else base
    config.revision = base.revision if isinstance(base, RepoRef) else None
    return model


def peft_config(section: PeftSection, model: PreTrainedModel, arguments: dict[str, Any]) -> Any:
    """The config of peft for the adapter that a recipe describes; `arguments` are those that all methods take."""
    from peft import IA3Config, LoraConfig

    if section.method == "ia3":
        feedforward = match_modules(
            model, section.feedforward_modules or (), arguments["target_modules"], "peft.feedforward_modules"
        )
        return IA3Config(**arguments, feedforward_modules=feedforward)
    return LoraConfig(
        **arguments,
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        use_dora=section.method == "dora",
    )


def target_modules(model: PreTrainedModel, section: PeftSection, saved: Iterable[str]) -> list[str]:
    """The full names of the layers that get an adapter: those that `peft.target_modules` selects.

    Only linear layers outside the modules `saved`, which are trained in full, can get one. Raises RecipeError if a name
    matches none.
    """
    in_full = tuple(f"{name}." for name in saved)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    candidates = [name for name in linear if not f"{name}.".startswith(in_full)]
    if section.target_modules == "all-linear":
        output, tied = model.get_output_embeddings(), tied_modules(model)
        targets = [name for name in candidates if model.get_submodule(name) is not output and name not in tied]
        if not targets:
            raise RecipeError(f"peft.target_modules: a {model.config.model_type} has no linear layers to adapt.")
        return targets
    return match_modules(model, section.target_modules, candidates, "peft.target_modules")


def modules_to_save(model: PreTrainedModel, section: PeftSection, task_type: str, heads: Sequence[str]) -> list[str]:
    """The full names of the modules that are trained in full: the heads of peft for the task type, `heads`, and those
    that the recipe names. Raises RecipeError if a name in the recipe matches none."""
    names = [name for name, _ in model.named_modules() if name]
    by_peft = [name for name in names if name.endswith(HEADS.get(task_type, ()))]
    by_recipe = match_modules(model, section.modules_to_save, names, "peft.modules_to_save")
    saved = dict.fromkeys([*by_peft, *heads, *by_recipe])
    # a module is saved with the one that contains it
    return [name for name in saved if not any(name.startswith(f"{other}.") for other in saved)]


def match_modules(model: PreTrainedModel, endings: Sequence[str], names: Sequence[str], key: str) -> list[str]:
    """The names that end in one of the endings, in the order of the model. Raises RecipeError, with the nearest names,
    if an ending matches none, or a module with tied weights."""
    tied, matches = tied_modules(model), set()
    for ending in endings:
        new = {name for name in names if name == ending or name.endswith(f".{ending}")}
        if not new:
            raise RecipeError(f"{key}: {unmatched_modules_message(model, ending, names)}")
        if shared := sorted(new & tied):
            raise RecipeError(
                f"{key}: {shared[0]} shares its weights with another module, which would change with it. Remove it."
            )
        matches |= new
    return [name for name in names if name in matches]


def unmatched_modules_message(model: PreTrainedModel, ending: str, names: Sequence[str]) -> str:
    """A message on why no name matches an ending, with the names that would."""
    others = [module for name, module in model.named_modules() if name == ending or name.endswith(f".{ending}")]
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names if not name.rpartition(".")[2].isdigit()))
    if others:
        kind = type(others[0]).__name__
        problem = f'"{ending}" is of class {kind}, or trained in full; adapters are for linear layers.'
    else:
        problem = f'a {model.config.model_type} has no layer "{ending}".{did_you_mean(ending, [*ends, *names])}'
    more = f", … ({len(ends)} in total)" if len(ends) > 20 else ""
    return f"{problem} Its layers are {', '.join(ends[:20])}{more}."


def tied_modules(model: nn.Module) -> set[str]:
    """The names of modules that share a weight with another module."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    return {name for names in owners.values() if len(names) > 1 for name in names}


def base_model_of(folder: str | Path) -> str:
    """The name of an adapter's base model, with `@REVISION` if it has one."""
    config = read_adapter_config(folder)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base:
        raise RunError(f"{folder} is an adapter that does not name its base model (base_model_name_or_path)")
    return f"{base}@{revision}" if isinstance(revision, str) and "@" not in base else base


def adapted_class(folder: str | Path) -> Any:
    """The Auto class of transformers that loads the base model of an adapter."""
    return AUTO_CLASSES[read_adapter_config(folder)["task_type"]]


def attach_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Add a trained adapter to its base model. Raises RunError if the weights do not match the model.

    Not `model.load_adapter`, which ignores the magnitude vectors of DoRA.
    """
    from peft import PeftConfig, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    model.add_adapter(PeftConfig.from_pretrained(str(folder)))
    weights = load_peft_weights(str(folder), device="cpu")
    weights = {name.removeprefix("base_model.model."): tensor for name, tensor in weights.items()}
    mismatched = sorted(weights.keys() ^ get_peft_model_state_dict(model).keys())
    if mismatched:
        raise RunError(
            f"{folder} is not an adapter of {base_model_of(folder)}: {', '.join(mismatched[:3])} do not match"
        )
    set_peft_model_state_dict(model, weights)
    return model.eval()  # peft adds its layers, with dropout, in training mode


def merge_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Merge a trained adapter into the weights of its base model.

    Raises RunError if a weight would not be a finite number.
    """
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(model, str(folder))
    try:
        merged = adapted.merge_and_unload(safe_merge=True)
    except ValueError as error:  # peft found NaN
        raise RunError(
            f"the adapter in {folder} cannot be merged: its weights are not finite numbers ({error})"
        ) from None
    check_finite(merged, f"the adapter in {folder} cannot be merged")
    return merged


def read_adapter_config(folder: str | Path) -> dict[str, Any]:
    """The adapter_config.json of an adapter. Raises RunError if kit does not support the adapter."""
    file = adapter_config_file(folder)
    assert file is not None
    if not (file.parent / ADAPTER_WEIGHTS).is_file():  # peft would unpickle another file instead
        raise RunError(f"{folder} is an adapter without {ADAPTER_WEIGHTS}: kit loads no other format")
    saved = read_json(file, "the configuration of an adapter")
    if saved.get("peft_type") not in PEFT_TYPES:
        raise RunError(
            f"{folder} is an adapter of type {saved.get('peft_type')}, which kit does not support. Use one of type "
            f"{' or '.join(PEFT_TYPES)} (peft.method: lora, dora or ia3)"
        )
    if saved.get("task_type") not in AUTO_CLASSES:
        raise RunError(f"{folder} is an adapter for {saved.get('task_type')}, which kit has no task for")
    return saved


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """The number of trainable parameters and of all parameters; peft's untrained copy of a head is not counted."""
    counted = [p for name, p in model.named_parameters() if ".original_module." not in f".{name}"]
    return sum(p.numel() for p in counted if p.requires_grad), sum(p.numel() for p in counted)


def describe_parameters(model: nn.Module) -> str:
    """The number of parameters of a model, and of its trainable ones unless all are."""
    trained, total = parameter_counts(model)
    trainable = "" if trained == total else f", of which {trained:,} ({trained / total:.2%}) are trainable"
    return f"{total:,} parameters{trainable}"
