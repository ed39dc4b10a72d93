"""Sharded training equals replicated training, and writes the same files."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from conftest import RunKit
from support.processes import in_processes
from support.recipes import write_recipe
from support.runs import assert_same_weights, losses, rewind, weights
from torch.distributed.tensor import DTensor
from transformers import BertConfig, BertForMaskedLM

from kit import KitError, load_recipe, train
from kit.recipe.catalog import recipes_folder
from kit.training import sharding
from kit.training.launch import SHARDED_ENVIRONMENT
from kit.training.loop import Loop

OTHERS = ("translation", "masked_lm", "classification")
CONFIGS = sorted((recipes_folder() / "accelerate").glob("*.yaml"))
SAME = ["train.dtype=float64", "train.micro_batches=4", "train.ema_decay=0.9", "train.max_grad_norm=0.5"]


def train_as_on_gpus(recipe: Any, output: Path, resume: bool = False) -> None:
    """Train sharded, with what Accelerate does on GPUs: it switches to FSDP, which it never does on a CPU."""
    from accelerate.state import AcceleratorState, PartialState

    plain = AcceleratorState.__init__

    def with_fsdp(self: AcceleratorState, *arguments: Any, **settings: Any) -> None:
        plain(self, *arguments, **settings)
        PartialState._shared_state["distributed_type"] = self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = settings.get("fsdp_plugin") or self.fsdp_plugin

    AcceleratorState.__init__ = with_fsdp  # type: ignore[method-assign]
    train_sharded(recipe, output, resume)
    assert Accelerator().is_fsdp2


def train_sharded(recipe: Any, output: Path, resume: bool = False) -> None:
    """Train sharded, and record which part of the weights this process held."""
    os.environ |= SHARDED_ENVIRONMENT
    plain, held = Loop._step, {}

    def watched(self: Loop, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        parameters = dict(self.trained_objective.model.named_parameters())
        assert all(isinstance(parameter, DTensor) for parameter in parameters.values())
        moments = [state["exp_avg"] for state in self.optimizer.state.values()]
        assert all(isinstance(moment, DTensor) for moment in moments)
        held["own"] = sum(p.to_local().numel() for p in parameters.values() if isinstance(p, DTensor))
        held["whole"] = sum(p.numel() for p in parameters.values())
        held["moments"] = sum(m.to_local().numel() for m in moments)
        held["beside"] = sum(p.numel() for p in self.objective.parameters())
        return result

    Loop._step = watched  # type: ignore[method-assign]
    train(recipe, output, resume)
    (output / f"held-{os.environ['RANK']}.json").write_text(json.dumps(held), encoding="utf-8")


@pytest.mark.parametrize("kind", ["causal_lm", *(pytest.param(kind, marks=pytest.mark.soak) for kind in OTHERS)])
def test_sharded_training_equals_replicated_training(kind: str, tmp_path: Path) -> None:
    """With dropout, accumulation, clipping and a moving average; GPT-2 ties its word embeddings and gathers its layers
    one by one. Then a replicated run resumes sharded, and the reverse, with another number of processes."""
    recipe = load_recipe(write_recipe(tmp_path, kind), [*SAME, "train.save_total_limit=9"])
    whole = train(recipe, tmp_path / "whole").folder
    sharded = tmp_path / "sharded"
    in_processes(2, train_sharded, recipe, sharded)
    held = [json.loads((sharded / f"held-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert sum(entry["own"] for entry in held) == held[0]["whole"]
    assert all(entry["moments"] == entry["own"] < entry["whole"] for entry in held)
    assert all(entry["beside"] == 0 for entry in held)
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-9)
    assert_same_weights(whole, sharded, 1e-9)
    assert all(type(tensor) is torch.Tensor for tensor in weights(sharded).values())
    names = {path.name for path in (sharded / "model").iterdir()}
    assert names == {path.name for path in (whole / "model").iterdir()}

    rewind(sharded, 4)
    train(recipe, sharded, resume=True)
    rewind(whole, 8)
    in_processes(2, train_sharded, recipe, whole, True)
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-9)
    assert_same_weights(whole, sharded, 1e-9)


def test_sharding_trains_where_accelerate_turns_to_fsdp(tmp_path: Path) -> None:
    """On CUDA, Accelerate takes FSDP over and rejects an optimizer that is prepared without its model."""
    recipe = load_recipe(write_recipe(tmp_path, "causal_lm"), [*SAME, "train.max_steps=8"])
    whole, sharded = train(recipe, tmp_path / "whole").folder, tmp_path / "sharded"
    in_processes(2, train_as_on_gpus, recipe, sharded)
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-9)
    rewind(sharded, 4)
    in_processes(2, train_as_on_gpus, recipe, sharded, True)
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-9)
    assert_same_weights(whole, sharded, 1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_a_layer_that_shares_weights_stays_with_the_whole(tied: bool) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(**sizes, vocab_size=20, tie_word_embeddings=tied))
    names = [type(layer).__name__ for layer in sharding.shardable_layers(model)]
    assert names == [*([] if tied else ["BertEmbeddings"]), "BertLayer", "BertLayer"]


@pytest.mark.parametrize(
    ("overrides", "processes", "variables", "message"),
    [
        (["train.optimizer=adafactor"], 2, {}, "adafactor needs whole rows"),
        (["train.torch_compile=true"], 2, {}, "train.torch_compile does not work with sharding"),
        (["train.mixed_precision=fp16"], 2, {}, "fp16 does not work with sharding"),
        (["model={pretrained: x/y}", "tokenizer={}", "peft.method=lora"], 2, {}, "peft does not work with sharding"),
        (["train.micro_batches=3"], 2, {}, "a step is computed in 3 parts .* use a multiple of 2"),
        ([], 1, {}, "there is only one: add --processes 2"),
        ([], 2, {"FSDP_VERSION": "1"}, "fsdp_version: 2"),
        ([], 2, {"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params is not supported"),
    ],
)
def test_unsupported_combinations_are_rejected(
    tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], processes: int, variables: dict[str, str],
    message: str,
) -> None:  # fmt: skip
    for name, value in {**SHARDED_ENVIRONMENT, **variables}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe(tiny_recipe, ["train.micro_batches=2", *overrides])
    accelerator: Any = SimpleNamespace(num_processes=processes)
    with pytest.raises(KitError, match=message):
        sharding.check(recipe, accelerator)


def test_one_process_has_nothing_to_shard(tiny_recipe: Path, kit_here: RunKit) -> None:
    done = kit_here("train", tiny_recipe, "--shard")
    assert done.returncode == 2
    assert "--shard splits the weights across processes: add --processes 2 or more" in done.stderr


# ---- configurations of Accelerate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_its_configurations(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.num_processes > 1
    kind = str(config.distributed_type).rpartition(".")[2]
    assert kind == ("FSDP" if path.stem in ("fsdp2", "zero3") else "MULTI_GPU")
    assert (config.num_machines > 1) == (path.stem == "multi_node")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if "#" not in line] in ([], ["fsdp_config:"])


def launch_environment(path: Path) -> dict[str, str]:
    """The environment that `accelerate launch --config_file PATH` starts processes with."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    parsed = launch_command_parser().parse_args(["--config_file", str(path), "-m", "kit"])
    return prepare_multi_gpu_env(_validate_launch_command(parsed)[0])


@pytest.mark.parametrize("name", ["fsdp2", "zero3", "multi_node", "ddp"])
def test_what_accelerate_makes_of_them_asks_kit_to_shard(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = launch_environment(recipes_folder() / "accelerate" / f"{name}.yaml")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert sharding.is_requested() == (name in ("fsdp2", "zero3"))
    if sharding.is_requested():
        recipe = load_recipe("dates_rnn", ["train.micro_batches=4"])
        accelerator: Any = SimpleNamespace(num_processes=4)
        sharding.check(recipe, accelerator)
        assert os.environ["FSDP_RESHARD_AFTER_FORWARD"] == ("true" if name == "zero3" else "false")


def test_the_advice_of_the_configuration_for_several_machines_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate ignores `fsdp_config` unless `distributed_type` is FSDP, and trains without sharding."""
    folder = recipes_folder() / "accelerate"
    text = (folder / "multi_node.yaml").read_text(encoding="utf-8")
    assert "set distributed_type to FSDP and append the fsdp_config of zero3.yaml" in text.replace("\n# ", " ")
    fsdp_config = (folder / "zero3.yaml").read_text(encoding="utf-8").partition("fsdp_config:")
    changed = text.replace("distributed_type: MULTI_GPU", "distributed_type: FSDP") + "".join(fsdp_config[1:])
    (tmp_path / "config.yaml").write_text(changed, encoding="utf-8")
    environment = launch_environment(tmp_path / "config.yaml")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert sharding.is_requested()
    accelerator: Any = SimpleNamespace(num_processes=16)
    sharding.check(load_recipe("dates_rnn", ["train.micro_batches=16"]), accelerator)
