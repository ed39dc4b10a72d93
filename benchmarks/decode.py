"""Sentences per second of kit's beam search against the stock one, with the same weights.

    python benchmarks/decode.py RUN SOURCE REFERENCE [--beams 5] [--batch 32] [--rounds 3]

RUN is a finished run (or model folder) of a `transformer_seq2seq` that Marian can hold: norm: post, sinusoids, one tied
vocabulary, as recipes/translation/multi30k_transformer.yaml makes it. SOURCE and REFERENCE are text files (.gz too), a
sentence a line. The sides take turns in one process, several rounds, as machines drift: only ratios mean something.

    kit                     batches of as many sentences, sorted by length
    kit, as it ships        batches by tokens, as `kit generate` makes them
    Marian, file order      `MarianMTModel.generate()`, batches of as many sentences in the order of the file
    Marian, sorted          the same, sorted by length
    CTranslate2             float32, if the package is installed (kit does not need it)
"""

import argparse
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from kit.data.batching.plan import length_sorted_batches
from kit.data.batching.ragged import RaggedTokens, TokenPairs
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.evaluation.metrics import compute_metrics
from kit.tasks.families.seq2seq.inference import Translator
from kit.verify.marian import as_marian

Side = Callable[[], list[str]]


def lines_of(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def in_order(texts: dict[int, str]) -> list[str]:
    return [texts[number] for number in range(len(texts))]


def kit_side(
    translator: Translator, pairs: TokenPairs, settings: GenerationSettings, batches: Sequence[np.ndarray]
) -> Side:
    def translate() -> list[str]:
        texts = {}
        for indices in batches:
            batch = pairs.batch(indices, translator.tokenizers.source.pad_token_id)
            hypotheses = search(translator.model, batch, settings)
            decoded = translator.tokenizers.decode([ranked[0].tokens for ranked in hypotheses])
            texts.update(zip(indices.tolist(), decoded, strict=True))
        return in_order(texts)

    return translate


def marian_side(
    translator: Translator, pairs: TokenPairs, settings: GenerationSettings, batches: Sequence[np.ndarray]
) -> Side:
    marian = as_marian(translator.model)
    config = settings.seq2seq_config(translator.model)

    def translate() -> list[str]:
        texts = {}
        for indices in batches:
            batch = pairs.batch(indices, translator.tokenizers.source.pad_token_id)
            with torch.inference_mode():
                tokens = marian.generate(
                    input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=config
                )
            decoded = translator.tokenizers.target.batch_decode(tokens, skip_special_tokens=True)
            texts.update(zip(indices.tolist(), decoded, strict=True))
        return in_order(texts)

    return translate


def ctranslate2_side(
    translator: Translator, pairs: TokenPairs, settings: GenerationSettings, batch: int, folder: str
) -> Side | None:
    """The same weights in CTranslate2, or None where it is not installed."""
    try:
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader, MarianMTLoader
    except ImportError:
        return None
    marian, tokenizer = as_marian(translator.model), translator.tokenizers.source
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))

    class Loader(MarianMTLoader):  # type: ignore[misc]
        def get_vocabulary(self, model: object, tokenizer: object) -> list[str]:
            return list(vocabulary)

        def set_decoder(self, spec: object, decoder: object) -> None:
            """kit's decoder starts from a token, Marian's from zeros."""
            BartLoader.set_decoder(self, spec, decoder)

        def _remove_pad_weights(self, spec: object) -> None:
            """kit's model keeps its padding token."""

    spec = Loader().get_model_spec(marian)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.decoder_start_token = tokenizer.convert_ids_to_tokens(marian.config.decoder_start_token_id)
    spec.config.bos_token, spec.config.eos_token = tokenizer.bos_token, tokenizer.eos_token
    spec.config.unk_token, spec.config.add_source_eos = tokenizer.unk_token, False
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(folder)
    engine = ctranslate2.Translator(folder, device="cpu", compute_type="float32", intra_threads=torch.get_num_threads())
    sources = [tokenizer.convert_ids_to_tokens(pairs.source[number].tolist()) for number in range(len(pairs))]

    def translate() -> list[str]:
        results = engine.translate_batch(
            sources,
            beam_size=settings.num_beams,
            max_batch_size=batch,
            length_penalty=settings.length_penalty,
            max_decoding_length=settings.max_new_tokens,
        )
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return translator.tokenizers.decode(ids)

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="sentences in a batch")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sources, references = lines_of(arguments.source), lines_of(arguments.reference)
    translator = Translator(arguments.run)
    settings = translator.with_options(num_beams=arguments.beams).settings
    pairs = TokenPairs(RaggedTokens(translator.tokenizers.encode_source(sources)), RaggedTokens([] for _ in sources))
    in_file_order = [
        np.arange(start, min(start + arguments.batch, len(pairs))) for start in range(0, len(pairs), arguments.batch)
    ]
    by_length = np.argsort(-pairs.source.lengths, kind="stable")
    in_sorted_order = [by_length[batch] for batch in in_file_order]
    by_tokens = length_sorted_batches(pairs.source.lengths, 8192 // arguments.beams)
    sides: dict[str, Side | None] = {
        "kit": kit_side(translator, pairs, settings, in_sorted_order),
        "kit, as it ships": kit_side(translator, pairs, settings, by_tokens),
        "Marian, file order": marian_side(translator, pairs, settings, in_file_order),
        "Marian, sorted": marian_side(translator, pairs, settings, in_sorted_order),
    }
    with tempfile.TemporaryDirectory() as folder:
        sides["CTranslate2"] = ctranslate2_side(translator, pairs, settings, arguments.batch, folder)
        available = {name: side for name, side in sides.items() if side is not None}
        speeds: dict[str, list[float]] = {name: [] for name in available}
        outputs: dict[str, list[str]] = {}
        for _ in range(arguments.rounds):
            for name, side in available.items():
                began = time.perf_counter()
                outputs[name] = side()
                speeds[name].append(len(sources) / (time.perf_counter() - began))
    for name, measured in speeds.items():
        ratios = [ours / other for ours, other in zip(speeds["kit"], measured, strict=True)]
        same = sum(ours == other for ours, other in zip(outputs["kit"], outputs[name], strict=True))
        bleu = compute_metrics(["bleu"], outputs[name], references)["bleu"]
        print(
            f"{name:20s} {statistics.median(measured):7.1f} sentences/s   kit / this: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}–{max(ratios):.2f})   BLEU {bleu:.2f}   {same} of {len(sources)} outputs as kit's"
        )


if __name__ == "__main__":
    main()
