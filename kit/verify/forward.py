"""Proofs about `forward`: padding, caching, saving and fused layers do not change the logits."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.pretrained.loading import quiet_transformers
from kit.system.outputs import scratch_folder
from kit.training.objective import Batch
from kit.verify.proof import Outcome, equal_within, proof
from kit.verify.subject import Subject, can_be_padded, is_recurrent, is_seq2seq, logits_of, reads_text

TOLERANCE = 1e-6
"""Relative, for logits in float64: some models of transformers compute parts in float32 regardless."""

EXTRA_PADDING = 3  # positions added to the longest row, so that every row has some


def relative_difference(actual: Tensor, expected: Tensor, where: Tensor | None = None) -> float:
    """The largest difference relative to the largest logit, or to 1 if that is smaller.

    With `where` (batch, target), only positions where it is true count.
    """
    if where is not None:
        actual, expected = actual[where], expected[where]
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))


@proof("save and load", "a saved model is loaded with the same weights and logits, bit for bit", is_seq2seq)
def save_and_load(subject: Subject) -> Outcome:
    inputs = {name: tensor.to(subject.model.device) for name, tensor in subject.inputs().items()}
    return compare_after_reload(subject.model, lambda model: logits_of(model, inputs))


def compare_after_reload(
    model: PreTrainedModel, run: Callable[[PreTrainedModel], Tensor], what: str = "logits"
) -> Outcome:
    """Save and load a model; passes if weights and the result of `run` are bit-identical."""
    with scratch_folder("kit-verify-") as folder, quiet_transformers():
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder, dtype=model.dtype, trust_remote_code=False).to(model.device)
    ours, theirs = model.state_dict(), loaded.state_dict()
    if ours.keys() != theirs.keys():
        return Outcome(False, f"names differ: {', '.join(sorted(ours.keys() ^ theirs.keys()))}")
    changed = [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]
    if changed:
        return Outcome(False, f"{len(changed)} of {len(ours)} tensors differ: {', '.join(changed)}")
    # Copy both: the last bit of a matrix product can depend on the memory alignment of its factors.
    same = torch.equal(*(run(copy.deepcopy(candidate).eval()) for candidate in (loaded, model)))
    return Outcome(same, f"{len(ours)} tensors equal, {what} {'equal' if same else 'differ'}")


def _padded(subject: Subject, left: bool) -> Batch:
    """The batch with extra padding of random tokens on one side, which only the mask marks as padding.

    Images are padded with noise below and to the right.
    """
    if "pixel_values" in subject.batch:
        pixels = subject.batch["pixel_values"]
        height, width = pixels.shape[-2:]
        larger = torch.randn(*pixels.shape[:2], height + EXTRA_PADDING, width + 2 * EXTRA_PADDING, dtype=pixels.dtype)
        larger[..., :height, :width] = pixels
        pixel_mask = torch.zeros(len(pixels), *larger.shape[-2:], dtype=torch.long)
        pixel_mask[:, :height, :width] = 1
        return {"pixel_values": larger, "pixel_mask": pixel_mask, "decoder_input_ids": subject.decoder_input_ids}
    ids, mask = (subject.batch[name] for name in ("input_ids", "attention_mask"))
    of_turns = ids.dim() == 3
    if not of_turns:  # treat as dialogues of one turn
        ids, mask = ids.unsqueeze(1), mask.unsqueeze(1)
    rows, turns, width = ids.shape
    vocabulary = subject.exact.get_input_embeddings().num_embeddings
    wide = torch.randint(vocabulary, (rows, turns + of_turns * EXTRA_PADDING, width + EXTRA_PADDING))
    wide_mask = torch.zeros_like(wide)
    for row in range(rows):
        lengths = [length for length in mask[row].sum(-1).tolist() if length]
        first = wide.shape[1] - len(lengths) if left else 0
        for turn, length in enumerate(lengths):
            real = slice(width + EXTRA_PADDING - length, None) if left else slice(length)
            wide[row, first + turn, real] = ids[row, turn, :length]
            wide_mask[row, first + turn, real] = 1
    if not of_turns:
        wide, wide_mask = wide.squeeze(1), wide_mask.squeeze(1)
    return {"input_ids": wide, "attention_mask": wide_mask, "decoder_input_ids": subject.decoder_input_ids}


def _padding(subject: Subject, left: bool) -> Outcome:
    """Whether the batch with extra padding on one side gives each example the logits it has alone."""
    real = subject.batch["labels"] != IGNORE_INDEX
    padded = logits_of(subject.exact, _padded(subject, left))
    return equal_within(relative_difference(padded, subject.logits_alone, real), TOLERANCE, "logits")


@proof("padding", "a padded batch gives each example the logits it has alone", can_be_padded)
def right_padding(subject: Subject) -> Outcome:
    return _padding(subject, left=False)


@proof("left padding", "padding before the source changes no logits either", reads_text)
def left_padding(subject: Subject) -> Outcome:
    return _padding(subject, left=True)


@proof("cache", "decoding token by token with the cache gives the logits of the whole target", is_seq2seq)
def cached_logits(subject: Subject) -> Outcome:
    model, inputs = subject.exact, subject.inputs()
    whole = logits_of(model, inputs)
    target = inputs["decoder_input_ids"]
    masks = {name: inputs[name] for name in ("attention_mask",) if name in inputs}
    steps, cache = [], None
    with torch.no_grad():
        encoded = model.get_encoder()(**subject.source(), return_dict=True)
        for t in range(target.shape[1]):
            output = model(
                encoder_outputs=encoded,
                **masks,
                decoder_input_ids=target[:, t : t + 1],
                past_key_values=cache,
                use_cache=True,
            )
            steps.append(output.logits)
            cache = output.past_key_values
    return equal_within(relative_difference(torch.cat(steps, dim=1), whole), TOLERANCE, "logits")


@proof("fused layers", "fused recurrent layers give the logits of a loop over single cells", is_recurrent)
def fused_layers(subject: Subject) -> Outcome:
    model = subject.exact
    fused = logits_of(model, subject.inputs())
    decoder = model.get_decoder()
    decoder.stepwise = True
    try:
        looped = logits_of(model, subject.inputs())
    finally:
        decoder.stepwise = False
    return equal_within(relative_difference(fused, looped), TOLERANCE, "logits")
