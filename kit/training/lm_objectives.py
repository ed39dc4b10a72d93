"""Objectives of masked and causal language models, which compute as few logits as possible."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.models.recurrent import RecurrentCache
from kit.training.chunked_loss import chunked_cross_entropy, label_losses
from kit.training.objective import Batch, Objective, label_count


@contextmanager
def replace_head_input(head: nn.Module, change: Any) -> Iterator[None]:
    """Context manager: the output layer receives `change(hidden states)` inside the block."""
    handle = head.register_forward_pre_hook(lambda module, arguments: (change(arguments[0]), *arguments[1:]))
    try:
        yield
    finally:
        handle.remove()


class MaskedLMObjective(Objective):
    """Cross-entropy of masked tokens, plus that of next-sentence prediction if the model has its head.

    The prediction head runs at the masked positions only: logits elsewhere do not enter the loss.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.with_pairs = hasattr(model, "cls") and hasattr(model.cls, "seq_relationship")
        self.needs_logits = not is_plain_head(model)
        self.head = prediction_head(model)

    def normalizers(self, batch: Batch) -> list[float]:
        return [label_count(batch), *([len(batch["labels"])] if self.with_pairs else [])]

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        masked, pairs = self.summed_losses(batch)
        loss = masked / max(totals[0], 1)
        return loss if pairs is None else loss + pairs / totals[1]

    def summed_losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy summed over masked tokens, and summed over sentence pairs or None."""
        labels = batch["labels"][batch["labels"] != IGNORE_INDEX]
        if self.needs_logits:
            logits, pair_logits = self.logits(batch)
            masked = nn.functional.cross_entropy(logits, labels, reduction="sum")
        else:
            seen: list[Tensor] = []
            pair_logits = self._pair_logits(self._outputs(batch, seen))
            masked = chunked_cross_entropy(seen[0], self.model.get_output_embeddings(), labels)
        if pair_logits is None:
            return masked, None
        return masked, nn.functional.cross_entropy(pair_logits, batch["next_sentence_label"], reduction="sum")

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits at the masked positions (masked, vocabulary), and of next-sentence prediction (batch, 2) or None."""
        outputs = self._outputs(batch)
        return upcast(vocabulary_logits(outputs)), self._pair_logits(outputs)

    def _outputs(self, batch: Batch, seen: list[Tensor] | None = None) -> Any:
        """Model outputs with the head at the masked positions only. With `seen`, the output layer is skipped and its
        input is appended to `seen`."""
        masked = batch["labels"] != IGNORE_INDEX
        inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "next_sentence_label")}
        with replace_head_input(self.model.get_submodule(self.head), lambda hidden: hidden[masked]):
            if seen is None:
                return self.model(**inputs)
            with replace_head_input(self.model.get_output_embeddings(), capture_head_input(seen)):
                return self.model(**inputs)

    def _pair_logits(self, outputs: Any) -> Tensor | None:
        return upcast(outputs.seq_relationship_logits) if self.with_pairs else None


class CausalLMObjective(Objective):
    """Next-token cross-entropy, computed in chunks so that the full logits never exist.

    `labels` are already shifted: position t holds the token that follows token t. Shifting when the batch is built,
    not in the model, wastes no position at the end of a block.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.needs_logits = not is_plain_head(model)

    def normalizers(self, batch: Batch) -> list[float]:
        return [label_count(batch)]

    def token_counts(self, batch: Batch) -> list[int]:
        real = label_count(batch)
        return [real, real, batch["labels"].numel()]

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        return self.summed_loss(batch) / totals[0]

    def summed_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy summed over the labels of the batch."""
        labels = batch["labels"].flatten()
        if self.needs_logits:
            return nn.functional.cross_entropy(self._logits(batch), labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return chunked_cross_entropy(self._hidden(batch), self.model.get_output_embeddings(), labels)

    def label_losses(self, batch: Batch) -> Tensor:
        """Cross-entropy of each label (batch, time), without gradients; 0 where there is no label."""
        labels = batch["labels"].flatten()
        if self.needs_logits:
            logits = self._logits(batch)
            losses = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
        else:
            losses = label_losses(self._hidden(batch), self.model.get_output_embeddings(), labels)
        return losses.view_as(batch["labels"])

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        return {name: tensor for name, tensor in batch.items() if name != "labels"} | {"use_cache": False}

    def _logits(self, batch: Batch) -> Tensor:
        """(batch · time, vocabulary)"""
        return upcast(self.model(**self._inputs(batch)).logits.flatten(0, 1))

    def _hidden(self, batch: Batch) -> Tensor:
        """The input of the output layer, (batch · time, width)."""
        return hidden_states(self.model, self._inputs(batch)).flatten(0, 1)


class AnswerObjective(CausalLMObjective):
    """Next-token cross-entropy of right-padded prompts with answers: only the tokens of answers have labels."""

    token_counts = Objective.token_counts  # speed is measured in all tokens, prompts included


class TruncatedBPTTObjective(CausalLMObjective):
    """Next-token cross-entropy with truncated backpropagation through time (Williams & Peng, 1990).

    A recurrent model continues from its state at the end of the previous block; gradients stop at block boundaries.
    The batch has the `stream` of each row, and in `fresh` whether a stream starts there.
    """

    def __init__(self, model: PreTrainedModel, streams: int):
        super().__init__(model)
        self.needs_logits = False  # kit's recurrent models apply the output layer to hidden states, and nothing else
        self.streams = streams
        self._state: dict[str, Tensor] = {}  # (streams, width) each
        self._local = torch.zeros(streams, dtype=torch.bool)

    def _hidden(self, batch: Batch) -> Tensor:
        rows, fresh, cache = batch["stream"], batch["fresh"].unsqueeze(1), RecurrentCache()
        if self._state:
            cache.store({name: table[rows].masked_fill(fresh, 0) for name, table in self._state.items()}, 0)
        inputs = {"input_ids": batch["input_ids"], "past_key_values": cache, "use_cache": True}
        hidden = hidden_states(self.model, inputs)
        for name, new in cache.state.items():
            if name not in self._state:
                precise = torch.promote_types(new.dtype, torch.float32)
                self._state[name] = new.new_zeros(self.streams, new.shape[1], dtype=precise)
            self._state[name][rows] = new.detach().to(self._state[name].dtype)
        self._local[rows.cpu()] = True
        return hidden.flatten(0, 1)

    def carried_state(self) -> dict[str, Tensor]:
        return self._state

    def load_carried_state(self, tensors: dict[str, Tensor]) -> None:
        device = self.model.get_output_embeddings().weight.device
        self._state = {name: tensor.to(device) for name, tensor in tensors.items()}
        self._local = torch.zeros(self.streams, dtype=torch.bool)

    def local_streams(self) -> Tensor:
        return self._local


def capture_head_input(seen: list[Tensor]) -> Any:
    """A `change` for `replace_head_input`: append the input of the output layer to `seen`, and pass on no position of
    it, so that no logits are computed."""

    def keep(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden[..., :0, :]

    return keep


def hidden_states(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """The input of the output layer, (batch, time, width), without running the output layer."""
    seen: list[Tensor] = []
    with replace_head_input(model.get_output_embeddings(), capture_head_input(seen)):
        model(**inputs)
    return seen[0]


def vocabulary_logits(outputs: Any) -> Tensor:
    """The logits over the vocabulary, which BERT for pretraining names `prediction_logits`."""
    return outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits


def upcast(logits: Tensor) -> Tensor:
    """Logits in float32 or wider: log-softmax over a large vocabulary loses too much in 16 bits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def probe(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Context manager: evaluation mode without gradients, and a few tokens as input for probing the model."""
    was_training, device = model.training, model.get_output_embeddings().weight.device
    model.eval()
    try:
        with torch.no_grad():
            tokens = torch.arange(4, device=device).remainder(model.get_output_embeddings().weight.shape[0])
            yield {"input_ids": tokens.reshape(1, 4)}
    finally:
        model.train(was_training)


def is_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are just the output layer applied to hidden states; some models also scale or cap them.

    Found out by running the model, so that it holds for any class.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    with probe(model) as inputs:
        return logits_match(vocabulary_logits(model(**inputs)), head(hidden_states(model, inputs)))


def prediction_head(model: PreTrainedModel) -> str:
    """Name of the outermost module that can run on a subset of positions: the whole prediction head of a masked
    language model, or else its output layer. Found out by running the model with both."""
    output = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is output)
    outermost = name.split(".")[0]
    with probe(model) as inputs:
        some = torch.tensor([[False, True, False, True]])
        expected = vocabulary_logits(model(**inputs))[some]
        try:
            with replace_head_input(model.get_submodule(outermost), lambda hidden: hidden[some]):
                subset = vocabulary_logits(model(**inputs))
        except Exception:  # arbitrary model code: any error means that it needs all positions
            return name
    return outermost if logits_match(subset, expected) else name


def logits_match(logits: Tensor, others: Tensor) -> bool:
    """Whether two tensors of logits are equal up to rounding."""
    # far above the rounding of float32, and far below what a factor or a cap on the logits changes
    return logits.shape == others.shape and torch.allclose(logits, others, rtol=1e-4, atol=1e-5)
