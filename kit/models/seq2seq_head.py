"""What every encoder-decoder of kit does around its output layer: loss, decoder input, resizing of vocabularies."""

from typing import Any

import torch
from torch import Tensor, nn


def shift_right(labels: Tensor, start: int, pad: int) -> Tensor:
    """Decoder input of the labels: START, then each label but the last; ignored labels (−100) become PAD."""
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad)


def cross_entropy(logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of labels (−100 is ignored), divided by their number, or by `num_items` where a step is more than
    this batch."""
    # half precision is summed in float32; float64 stays what it is
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device)
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, reduction="sum")
    return total / ((labels != -100).sum() if num_items is None else num_items)


class Seq2SeqHead:
    """Methods of a model with `model.encoder`, `model.decoder` (each with its `embed_tokens`; the decoder's is None
    where both share one) and `lm_head`."""

    config: Any
    model: Any
    lm_head: nn.Linear

    def tied_weights(self) -> dict[str, str]:
        """Which matrix the output layer shares, when it does."""
        owner = "encoder" if self.config.share_embeddings else "decoder"
        return {"lm_head.weight": f"model.{owner}.embed_tokens.weight"}

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's word vectors, and the target's with them where there is one vocabulary."""
        old = self.model.encoder.embed_tokens
        new = self._resized(old, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.encoder.embed_tokens = new
        if not self.config.separate_vocabularies:
            self._resize_target(new.weight.shape[0], mean_resizing)
        return new

    def resize_decoder_token_embeddings(self, new_num_tokens: int, mean_resizing: bool = True) -> nn.Embedding:
        """Resize the target's word vectors and the output layer; for models with two vocabularies."""
        if not self.config.separate_vocabularies:
            raise ValueError("source and target share one vocabulary: use resize_token_embeddings")
        self._resize_target(new_num_tokens, mean_resizing)
        self.tie_weights()  # type: ignore[attr-defined]
        return self.model.decoder.embed_tokens

    def _resize_target(self, size: int, mean_resizing: bool) -> None:
        decoder = self.model.decoder
        if decoder.embed_tokens is not None:
            decoder.embed_tokens = self._resized(decoder.embed_tokens, size, None, mean_resizing)
        self.lm_head = self._get_resized_lm_head(  # type: ignore[attr-defined]
            self.lm_head, size, mean_resizing=mean_resizing
        )
        self.config.decoder_vocab_size = size

    def _resized(self, old: nn.Embedding, size: int | None, multiple: int | None, mean_resizing: bool) -> nn.Embedding:
        new = self._get_resized_embeddings(old, size, multiple, mean_resizing)  # type: ignore[attr-defined]
        return new.requires_grad_(old.weight.requires_grad)
