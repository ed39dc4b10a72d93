"""Objectives of language models: masked and causal, each with as little work on the vocabulary as is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.examples import IGNORED
from kit.models.recurrent import RecurrentCache
from kit.training.chunked_loss import CHUNK, chunked_cross_entropy
from kit.training.objective import Batch, Objective


@contextmanager
def head_input_through(head: nn.Module, change: Any) -> Iterator[None]:
    """Within the block the output layer sees `change(hidden states)`."""
    handle = head.register_forward_pre_hook(lambda module, arguments: (change(arguments[0]), *arguments[1:]))
    try:
        yield
    finally:
        handle.remove()


class MaskedLMObjective(Objective):
    """Cross-entropy of masked tokens, plus that of the order of two sentences where the batch asks for it.

    The output layer is computed at the masked positions only: what it would give elsewhere is never looked at.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.with_pairs = hasattr(model, "cls") and hasattr(model.cls, "seq_relationship")

    def counts(self, batch: Batch) -> Tensor:
        counts = [(batch["labels"] != IGNORED).sum()]
        if self.with_pairs:
            counts.append(torch.tensor(len(batch["labels"])))
        return torch.stack([count.cpu() for count in counts]).to(torch.float64)

    def sizes(self, batch: Batch) -> Tensor:
        real = batch["attention_mask"].sum()
        return torch.stack([real, real, torch.full_like(real, batch["labels"].numel())]).to(torch.float64)

    def forward(self, batch: Batch, totals: Tensor) -> Tensor:
        totals = totals.to(batch["labels"].device)
        masked, pairs = self.summed_losses(batch)
        loss = masked / totals[0].clamp(min=1)
        return loss if pairs is None else loss + pairs / totals[1]

    def summed_losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy summed over masked tokens, and over pairs of sentences."""
        logits, pair_logits = self.logits(batch)
        labels = batch["labels"][batch["labels"] != IGNORED]
        masked = nn.functional.cross_entropy(logits, labels, reduction="sum")
        if pair_logits is None:
            return masked, None
        return masked, nn.functional.cross_entropy(pair_logits, batch["next_sentence_label"], reduction="sum")

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits at the masked positions (masked, vocabulary), and of the order of sentences (batch, 2)."""
        masked = batch["labels"] != IGNORED
        inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "next_sentence_label")}
        with head_input_through(self.model.get_output_embeddings(), lambda hidden: hidden[masked]):
            outputs = self.model(**inputs)
        logits = outputs.prediction_logits if self.with_pairs else outputs.logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, outputs.seq_relationship_logits.to(logits.dtype) if self.with_pairs else None


class CausalLMObjective(Objective):
    """Cross-entropy of each next token; the logits are never there as a whole.

    `labels` stand beside the tokens that they are predicted from: whoever makes the batch has shifted them, so that no
    position is wasted at the end of a block.
    """

    def __init__(self, model: PreTrainedModel, chunk: int = CHUNK):
        super().__init__(model)
        self.chunk = chunk
        self.plain = not is_plain_head(model)

    def counts(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum().to(torch.float64).reshape(1)

    def sizes(self, batch: Batch) -> Tensor:
        real = (batch["labels"] != IGNORED).sum()
        return torch.stack([real, real, torch.full_like(real, batch["labels"].numel())]).to(torch.float64)

    def forward(self, batch: Batch, totals: Tensor) -> Tensor:
        return self.summed_loss(batch) / totals[0].to(batch["labels"].device)

    def summed_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy summed over the labels of the batch."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        labels, time = batch["labels"].flatten(), batch["labels"].shape[1]
        if self.plain:
            logits = self.model(**inputs, use_cache=False).logits[:, -time:].flatten(0, 1)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return chunked_cross_entropy(
            hidden_states(self.model, inputs)[:, -time:].flatten(0, 1),
            self.model.get_output_embeddings(),
            labels,
            chunk=self.chunk,
        )


class AnswerObjective(CausalLMObjective):
    """The same for prompts with answers, padded at the end: only tokens of answers have labels.

    What a model reads before the prompt, vectors of an adapter, is not among the positions of the batch.
    """

    def sizes(self, batch: Batch) -> Tensor:
        """The speed is that of all tokens that are read."""
        real = batch["attention_mask"].sum()
        return torch.stack([real, real, torch.full_like(real, batch["attention_mask"].numel())]).to(torch.float64)


class CarryingLMObjective(CausalLMObjective):
    """The same for a recurrent model that goes on from the state in which it left the block before (truncated
    backpropagation through time): gradients stop at the beginning of a block, what the model remembers does not.

    The batch says which stream of text each row is, and whether it begins there.
    """

    def __init__(self, model: PreTrainedModel, streams: int, chunk: int = CHUNK):
        super().__init__(model, chunk)
        self.streams = streams
        self._state: dict[str, Tensor] = {}  # (streams, width) each
        self._mine = torch.zeros(streams, dtype=torch.bool)

    def summed_loss(self, batch: Batch) -> Tensor:
        rows, fresh, cache = batch["stream"], batch["fresh"].unsqueeze(1), RecurrentCache()
        if self._state:
            cache.store({name: table[rows].masked_fill(fresh, 0) for name, table in self._state.items()}, 0)
        hidden = hidden_states(self.model, {"input_ids": batch["input_ids"], "past_key_values": cache}, use_cache=True)
        for name, new in cache.state.items():
            if name not in self._state:
                precise = torch.promote_types(new.dtype, torch.float32)
                self._state[name] = new.new_zeros(self.streams, new.shape[1], dtype=precise)
            self._state[name][rows] = new.detach().to(self._state[name].dtype)
        self._mine[rows.cpu()] = True
        head = self.model.get_output_embeddings()
        return chunked_cross_entropy(hidden.flatten(0, 1), head, batch["labels"].flatten(), chunk=self.chunk)

    def carried(self) -> dict[str, Tensor]:
        return self._state

    def carry(self, tensors: dict[str, Tensor]) -> None:
        device = self.model.get_output_embeddings().weight.device
        self._state = {name: tensor.to(device) for name, tensor in tensors.items()}
        self._mine = torch.zeros(self.streams, dtype=torch.bool)

    def own_streams(self) -> Tensor:
        return self._mine


def hidden_states(model: PreTrainedModel, inputs: dict[str, Any], use_cache: bool = False) -> Tensor:
    """What the output layer of a model is given, (batch, time, width), without computing the output layer."""
    seen: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden[:, :0]

    with head_input_through(model.get_output_embeddings(), keep):
        model(**inputs, use_cache=use_cache)
    return seen[0]


@torch.no_grad()
def is_plain_head(model: PreTrainedModel) -> bool:
    """Whether a model's logits are its output layer applied to the hidden states and nothing else: some scale or cap
    them. Tried out, not looked up, so that it holds for any class."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    was_training = model.training
    model.eval()
    try:
        tokens = torch.arange(4, device=head.weight.device).remainder(head.out_features).reshape(1, 4)
        logits = model(input_ids=tokens, use_cache=False).logits
        again = head(hidden_states(model, {"input_ids": tokens}))
        return logits.shape == again.shape and torch.allclose(logits, again, rtol=1e-4, atol=1e-5)
    finally:
        model.train(was_training)
