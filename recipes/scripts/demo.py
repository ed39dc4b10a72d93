"""Print what `make demo` shows after training: the score, translations from several languages, and what to try next.

python recipes/scripts/demo.py runs/dates_rnn
"""

import sys
from pathlib import Path

from kit import Translator
from kit.runs.folder import RunFolder

DATES = [
    "Saturday, November 16, 2019",
    "16. November 2019",
    "samedi 16 novembre 2019",
    "sábado, 16 de noviembre de 2019",
    "суббота, 16 ноября 2019 г.",
    "2019年11月16日",
    "2019년 11월 16일 토요일",
    "Σάββατο 16 Νοεμβρίου 2019",
    "[en] 11/16/19",
    "[de] 16.11.19",
]


def main(folder: str) -> None:
    run = RunFolder.open(Path(folder))
    results = run.results()
    test, minutes = results["test"], results["train"]["seconds"] / 60
    print(f"\nexact match on {test['examples']:,} test dates: {test['exact_match']:.4f}, after {minutes:.1f} minutes\n")
    for date, outputs in zip(DATES, Translator(run.path).translate(DATES), strict=True):
        print(f"  {date}  →  {outputs[0].text}")
    print(
        f"""
where the model looked: {run.plots / "attention.png"}
the model card:         {run.card}

try next, after `source .venv/bin/activate`:
  echo "3 maj 1984" | kit generate {folder} --scores
  kit verify {folder}
  kit explain model.attention
  kit train dates_rnn model.attention=dot --output runs/dates_dot && kit compare {folder} runs/dates_dot"""
    )


if __name__ == "__main__":
    main(sys.argv[1])
