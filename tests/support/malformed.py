"""Malformed inputs by the thousand, each a function of its seed: recipes, overrides, odd values, data and folders."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from kit import train
from kit.models import MODELS
from kit.recipe.base import sections_of
from kit.recipe.model_settings import config_class, settings_model
from kit.tasks.registry import recipe_classes
from support.attempts import PREPARE, Attempt
from support.data_files import CASES, NASTY, VALUES, complete, edited
from support.mutations import ANY_FILE, BY_ENDING, CHANGES, Damage, damages, flip_bits, kinds_for
from support.odd_values import ODD_ARGUMENTS, ODD_NUMBERS, ODD_SETTINGS, ODD_TEXTS, ODD_VALUES
from support.recipes import RECIPES, make_recipe

SHORT = ["train.max_steps=2", "train.save_steps=1", "eval.steps=0", "eval.examples=0"]
TRAINED = 0.15
"""Share of malformed recipes and data that are trained for two steps if they are accepted after all."""
NOT_CHANGED = (
    "model.pretrained",
    "tokenizer.pretrained",
    "train.report_to",
    "train.torch_compile",
    "train.max_steps",
    "train.num_train_epochs",
)
"""Keys that would reach for the network or other packages, or take long for a good reason."""


# ---- recipes and overrides -------------------------------------------------------------------------------------------


def recipe_attempt(seed: int) -> Attempt:
    """A recipe of any task with changed values, sections, lines or bytes."""
    chance = random.Random(f"recipe {seed}")
    task = chance.choice(sorted(RECIPES))
    recipe: dict[str, Any] = json.loads(json.dumps({"task": task, **RECIPES[task]}))
    recipe["train"]["max_steps"] = 2
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        change_key(recipe, chance.choice(keys_of(task)), odd_value(chance))
    if chance.random() < 0.2:
        change_section(recipe, chance)
    content = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode()
    damage = chance.random()
    if damage < 0.3:
        content = damaged_bytes(content, chance)
    elif damage < 0.6:
        content = changed(content, chance.choice(sorted(BY_ENDING[".yaml"])), chance)
    return Attempt(f"recipe {seed}", train_or_prepare(chance), {"recipe.yaml": content})


def odd_value(chance: random.Random) -> Any:
    """A value that a key of a recipe may not have, or not together with the others."""
    return chance.choice([*VALUES, *ODD_TEXTS, *map(json.loads, ODD_NUMBERS), *ODD_VALUES])


def change_section(recipe: dict[str, Any], chance: random.Random) -> None:
    """Remove, replace or add a section, or add a key of any task or none."""
    section = chance.choice(sorted(recipe))
    change = chance.choice(["remove", "replace", "add", "key", "foreign key", "task"])
    if change == "remove":
        del recipe[section]
    elif change == "replace":
        recipe[section] = odd_value(chance)
    elif change == "add":
        recipe[chance.choice(["Train", "trainer", "eval ", "", "ünï", "data.path", "peft", "measured", "hub"])] = (
            odd_value(chance)
        )
    elif change == "key":
        change_key(
            recipe, f"{section}.{chance.choice(['lr', 'epochs', '', 'ünï', '__class__', 'a.b', 'Seed', 'x' * 300])}", 1
        )
    elif change == "foreign key":
        change_key(recipe, chance.choice(keys_of(chance.choice(sorted(RECIPES)))), odd_value(chance))
    else:
        recipe["task"] = chance.choice([*sorted(RECIPES), "translate", "", 3])


def changed(content: bytes, kind: str, chance: random.Random) -> bytes:
    """The content after a change; where there is nothing that it could change, some bits are flipped."""
    try:
        return CHANGES[kind](content, chance)
    except Exception:
        return flip_bits(content, chance)


def train_or_prepare(chance: random.Random, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    if chance.random() < TRAINED:
        return ("train", "recipe.yaml", *overrides, "--output", "out")
    return (PREPARE, "recipe.yaml", *overrides)


def override_attempt(seed: int) -> Attempt:
    """Overrides of any kind on a good recipe."""
    chance = random.Random(f"override {seed}")
    task = chance.choice(sorted(RECIPES))
    changes = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        value = chance.choice([*map(json.dumps, [*VALUES, *ODD_VALUES]), *ODD_TEXTS, *ODD_NUMBERS, *ODD_ARGUMENTS])
        key = chance.choice(keys_of(chance.choice([task, task, task, *RECIPES])))
        key = chance.choice(
            [key, key, key, key, key, key.partition(".")[0], f"{key}.odd", f"{key}.", key.upper(), "task", "measured"]
        )
        changes.append(f"{key}={value}")
    if chance.random() < 0.2:
        changes[0] = damaged_bytes(changes[0].encode("utf-8", "replace"), chance).decode("utf-8", "replace")
    # neither null bytes nor options can be arguments of this kind
    changes = [change.replace("\0", "0") for change in changes]
    changes = [change for change in changes if not change.startswith("-")]
    return Attempt(f"override {seed}", train_or_prepare(chance, [*SHORT, *changes]), recipe_file(task))


def recipe_file(task: str) -> dict[str, bytes]:
    return {"recipe.yaml": yaml.safe_dump({"task": task, **RECIPES[task]}, sort_keys=False).encode()}


def keys_of(task: str, model_type: str = "") -> list[str]:
    """The keys of the recipe of a task, those of its model included."""
    keys = [f"{name}.{key}" for name, kind in sections_of(recipe_classes()[task]).items() for key in kind.model_fields]
    keys += [f"model.{key}" for key in model_fields(task, model_type)]
    return [key for key in keys if key not in NOT_CHANGED]


def model_fields(task: str, model_type: str = "") -> dict[str, Any]:
    """The keys of a model type, or of the model of the tiny recipe of a task."""
    model_type = model_type or RECIPES[task]["model"]["type"]
    mapping = None if model_type in MODELS else "MODEL_MAPPING_NAMES"
    return settings_model(config_class(model_type, mapping=mapping)).model_fields


def change_key(recipe: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if not isinstance(recipe.setdefault(section, {}), dict):
        recipe[section] = {}
    recipe[section][name] = value


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    kind = chance.choice(["flip", "insert", "remove", "repeat", "cut"])
    return edited(content, kind, chance.random(), chance.random(), chance.choice(NASTY))


# ---- odd values ------------------------------------------------------------------------------------------------------


def odd_attempt(seed: int) -> Attempt:
    """A recipe with an odd value, or two, trained for two steps."""
    chance = random.Random(f"odd {seed}")
    task = chance.choice(sorted(RECIPES))
    numbers, choices = keys_with_numbers(task), keys_with_choices(task)
    changes = [chance.choice(ODD_SETTINGS[task])] if chance.random() < 0.3 else []
    while len(changes) < chance.choice([1, 1, 2]):
        if chance.random() < 0.7:
            changes.append(f"{chance.choice(numbers)}={chance.choice(ODD_NUMBERS)}")
        else:
            key = chance.choice(sorted(choices))
            changes.append(f"{key}={json.dumps(chance.choice(choices[key]))}")
    return Attempt(f"odd {seed}", ("train", "recipe.yaml", *SHORT, *changes, "--output", "out"), recipe_file(task))


def annotations_of(task: str) -> dict[str, Any]:
    """The type of each key of the recipe of a task."""
    fields = {
        f"{section}.{name}": field
        for section, kind in sections_of(recipe_classes()[task]).items()
        for name, field in kind.model_fields.items()
    } | {f"model.{name}": field for name, field in model_fields(task).items()}
    return {key: fields[key].annotation for key in keys_of(task)}


def keys_with_numbers(task: str) -> list[str]:
    return [key for key, kind in annotations_of(task).items() if any(name in str(kind) for name in ("int", "float"))]


def keys_with_choices(task: str) -> dict[str, list[Any]]:
    """The keys that accept certain words, or true and false, with what they accept."""
    return {key: options for key, kind in annotations_of(task).items() if (options := options_of(kind))}


def options_of(annotation: Any) -> list[Any]:
    if annotation is bool:
        return [True, False]
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return list(inner)
    options = [option for member in inner for option in options_of(member)]
    return [[option] for option in options] if get_origin(annotation) is list else options


# ---- data ------------------------------------------------------------------------------------------------------------


def data_attempt(seed: int) -> Attempt:
    """Damaged data of any format, given to training or inspected with a recipe or without one."""
    chance = random.Random(f"data {seed}")
    name = chance.choice(sorted(CASES))
    recipe, files = CASES[name]
    files = {f"data/{file}": content for file, content in files.items()}
    damages = []
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        file = chance.choice(sorted(files))
        if chance.random() < 0.35:
            files[file] = damaged_bytes(files[file], chance)
        else:
            damages.append(Damage(file, chance.choice(kinds_for(file, len(files[file]))), seed))
    recipe = json.loads(json.dumps(complete(recipe)))
    recipe["train"]["save_steps"] = 1
    recipe.setdefault("eval", {}).update(steps=0, examples=0)
    if not damages or chance.random() < 0.2:
        keys = [key for key in keys_of(recipe["task"], recipe["model"]["type"]) if key.startswith("data.")]
        change_key(recipe, chance.choice(keys), odd_value(chance))
    if chance.random() < 0.1:  # the content of another format under this name
        other = chance.choice(sorted(CASES))
        files[chance.choice(sorted(files))] = chance.choice(list(CASES[other][1].values()))
    files["recipe.yaml"] = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode()
    inspected = chance.choice(["recipe.yaml", "data", *(file for file in files if file.startswith("data/"))])
    arguments = ("data", inspected) if chance.random() < 0.2 else train_or_prepare(chance)
    return Attempt(f"data {seed}: {name} {', '.join(map(str, damages))}", arguments, files, damages=damages)


# ---- folders ---------------------------------------------------------------------------------------------------------

LINES = "3 maj 1984\n2. Mai 2020\n"
ROWS = "".join(
    json.dumps({"text": text, "tokens": text.split(), "question": "when?", "context": text, "id": text}) + "\n"
    for text in LINES.split("\n")[:2]
)
GENERATE = (("generate", "run", "in.txt"), ("embed", "run", "in.txt"))
PREDICT = (("predict", "run", "in.jsonl"),)
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "translation": (*GENERATE, ("plot", "run", "--output", "plots"), ("compare", "run", "run")),
    "causal_lm": (*GENERATE, ("plot", "run", "--output", "plots")),
    "masked_lm": (("embed", "run", "in.txt"), ("plot", "run", "--output", "plots")),
    "instruction_tuning": GENERATE,
    "classification": (*PREDICT, ("embed", "run", "in.txt")),
    "tagging": PREDICT,
    "question_answering": PREDICT,
    "captioning": (("generate", "run", "in.txt"),),
    "dialogue": (("generate", "run", "in.txt"), ("chat", "run")),
    "forecasting": (("predict", "run", "in.csv"),),
}
ALL_TASKS: tuple[tuple[str, ...], ...] = (
    ("eval", "run"), ("train", "run", "--resume"), ("average", "run", "--last", "2", "--output", "out"),
    ("data", "run/recipe.yaml"), ("plot", "run"), ("runs", "."), ("compare", "run", "run"), ("eval", "run/model"),
    ("recipes", "run/recipe.yaml"), ("copy", "run/recipe.yaml", "copy.yaml"), ("train", "run/recipe.yaml", "--dry-run"),
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "generate": (
        "--num-beams", "--n-best", "--max-new-tokens", "--length-penalty", "--no-repeat-ngram-size", "--temperature",
        "--top-p", "--seed", "--source-language", "--target-language", "--split-sentences", "--attention", "--output",
        "--tokens-per-batch", "--checkpoint",
    ),
    "chat": ("--num-beams", "--max-new-tokens"),
    "embed": ("--output", "--pooling", "--tokens-per-batch"),
    "predict": ("--output", "--horizon", "--top-k", "--checkpoint"),
    "plot": (
        "--sentence", "--target", "--kind", "--layer", "--head", "--image", "--output", "--format", "--checkpoint",
        "--source-language", "--target-language",
    ),
    "eval": ("--split", "--predictions", "--checkpoint"),
    "compare": ("--split", "--metrics", "--samples"),
    "average": ("--last", "--output"),
}  # fmt: skip
FLAGS = ("--json", "--scores", "--sample", "--resume", "--dry-run")
SLOW: tuple[tuple[str, ...], ...] = (("verify", "run"), ("push", "run", "OWNER/NAME", "--dry-run"))
SERIES = "series,step,x,y,vx,vy\n" + "".join(f"a,{n},{n % 3},1,0,1\n" for n in range(40))


@dataclass(frozen=True)
class Runs:
    """A finished run of every task, an unfinished one, and one with an adapter, in one folder."""

    folder: Path

    @classmethod
    def train(cls, folder: Path) -> "Runs":
        for task in RECIPES:
            run = train(make_recipe(folder, task, overrides=SHORT), folder / task).folder
            unfinished = shutil.copytree(run, folder / f"{task}-unfinished")
            (unfinished / "results.json").unlink()
            shutil.rmtree(unfinished / "checkpoints" / "step-2")
        base = {"pretrained": str(folder / "classification" / "model")}
        adapter = make_recipe(
            folder / "adapter-recipe", "classification", model=base, peft={"method": "lora", "rank": 2}, overrides=SHORT
        )
        train(adapter, folder / "adapter")
        return cls(folder)

    def slow_attempt(self, seed: int) -> Attempt:
        """A damaged folder, given to a command that takes longer."""
        return self.attempt(seed, slow=True)

    def attempt(self, seed: int, slow: bool = False) -> Attempt:
        """A damaged folder, given to a command."""
        chance = random.Random(f"folder {seed}")
        task = chance.choice(sorted(RECIPES))
        source = self.folder / task
        command = chance.choice(SLOW if slow else [*COMMANDS[task], *ALL_TASKS])
        if command[:1] == ("train",):
            source = self.folder / f"{task}-unfinished"
        elif not slow and chance.random() < 0.1:
            source = self.folder / "adapter"
            command = chance.choice([("merge", "run", "--output", "out"), ("eval", "run"), *COMMANDS["classification"]])
        pattern = chance.choice(["**/*", "*", "model/**/*", "model/*.json", "checkpoints/**/*"])
        chosen = [chance.choice(damages(source, seed, pattern=pattern)) for _ in range(chance.choice([1, 1, 1, 2]))]
        return self.damaged(source, command, chosen, f"folder {seed}: {source.name} {', '.join(map(str, chosen))}")

    def inference_attempt(self, seed: int) -> Attempt:
        """An intact run with odd options, and input that is damaged or not."""
        chance = random.Random(f"inference {seed}")
        task = chance.choice(sorted(RECIPES))
        command = chance.choice([*COMMANDS[task], *COMMANDS[task], *ALL_TASKS])
        attempt = self.damaged(self.folder / task, command, [], f"inference {seed}: {task}")
        options: list[str] = []
        for _ in range(chance.choice([0, 1, 1, 2])):
            # nothing may be written outside the folder of the attempt
            texts = [text for text in ODD_TEXTS if not text.startswith(("/", "~", ".."))]
            values = ["nan", "inf", "-1", *ODD_NUMBERS, *texts, "mean", "all", "1", "out.png", "out/x", "run", "step-1"]
            options += [chance.choice([*OPTIONS.get(command[0], ("--output",)), *FLAGS]), chance.choice(values)]
            options = options[:-1] if options[-2] in FLAGS else options
        file = chance.choice([*attempt.files, "stdin"])
        content = attempt.files.get(file, attempt.stdin)
        if not options or chance.random() < 0.5:
            kinds = [*BY_ENDING[".txt"], *ANY_FILE, *BY_ENDING.get(Path(file).suffix, {})]
            content = changed(content, chance.choice(kinds), chance)
        stdin = content if file == "stdin" else attempt.stdin
        if file == "stdin":
            command = tuple(part for part in command if part != "in.txt")
        files = {**attempt.files, **({file: content} if file in attempt.files else {})}
        return replace(attempt, arguments=(*command, *options), files=files, stdin=stdin)

    def damaged(self, source: Path, command: tuple[str, ...], damages: Sequence[Damage], name: str = "") -> Attempt:
        files = {"in.txt": LINES.encode(), "in.jsonl": ROWS.encode(), "in.csv": SERIES.encode()}
        in_copy = [replace(damage, file=f"run/{damage.file}") for damage in damages]
        return Attempt(name or ", ".join(map(str, damages)), command, files, source, in_copy, LINES.encode())
