"""Objectives of language models: masked and causal, each with as little work on the vocabulary as is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.models.recurrent import RecurrentCache
from kit.training.chunked_loss import chunked_cross_entropy
from kit.training.objective import Batch, Objective


@contextmanager
def replace_head_input(head: nn.Module, change: Any) -> Iterator[None]:
    """Within the block the output layer sees `change(hidden states)`."""
    handle = head.register_forward_pre_hook(lambda module, arguments: (change(arguments[0]), *arguments[1:]))
    try:
        yield
    finally:
        handle.remove()


class MaskedLMObjective(Objective):
    """Cross-entropy of masked tokens, plus that of the order of two sentences where the batch asks for it.

    The prediction head is computed at the masked positions only: what it would give elsewhere is never looked at.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__(model)
        self.with_pairs = hasattr(model, "cls") and hasattr(model.cls, "seq_relationship")
        self.needs_logits = not is_plain_head(model)
        self.head = prediction_head(model)

    def normalizers(self, batch: Batch) -> Tensor:
        counts = [(batch["labels"] != IGNORE_INDEX).sum()]
        if self.with_pairs:
            counts.append(torch.tensor(len(batch["labels"])))
        return torch.stack([count.cpu() for count in counts]).to(torch.float64)

    def token_counts(self, batch: Batch) -> Tensor:
        real = batch["attention_mask"].sum()
        return torch.stack([real, real, torch.full_like(real, batch["labels"].numel())]).to(torch.float64)

    def forward(self, batch: Batch, totals: Tensor) -> Tensor:
        totals = totals.to(batch["labels"].device)
        masked, pairs = self.summed_losses(batch)
        loss = masked / totals[0].clamp(min=1)
        return loss if pairs is None else loss + pairs / totals[1]

    def summed_losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Cross-entropy summed over masked tokens, and over pairs of sentences."""
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
        """Logits at the masked positions (masked, vocabulary), and of the order of sentences (batch, 2)."""
        outputs = self._outputs(batch)
        return upcast(logits_of(outputs)), self._pair_logits(outputs)

    def _outputs(self, batch: Batch, seen: list[Tensor] | None = None) -> Any:
        """What the model makes of a batch, its head at the masked positions alone; where `seen` is given, without the
        output layer, whose input goes there."""
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
    """Cross-entropy of each next token; the logits are never there as a whole.

    `labels` stand beside the tokens that they are predicted from: whoever makes the batch has shifted them, so that no
    position is wasted at the end of a block.
    """

    def __init__(self, model: PreTrainedModel, chunk: int | None = None):
        super().__init__(model)
        self.chunk = chunk
        self.needs_logits = not is_plain_head(model)

    def normalizers(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORE_INDEX).sum().to(torch.float64).reshape(1)

    def token_counts(self, batch: Batch) -> Tensor:
        real = (batch["labels"] != IGNORE_INDEX).sum()
        return torch.stack([real, real, torch.full_like(real, batch["labels"].numel())]).to(torch.float64)

    def forward(self, batch: Batch, totals: Tensor) -> Tensor:
        return self.summed_loss(batch) / totals[0].to(batch["labels"].device)

    def summed_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy summed over the labels of the batch."""
        inputs: dict[str, Any] = {name: tensor for name, tensor in batch.items() if name != "labels"}
        inputs["use_cache"] = False
        labels = batch["labels"].flatten()
        if self.needs_logits:
            logits = upcast(self.model(**inputs).logits.flatten(0, 1))
            return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return chunked_cross_entropy(
            hidden_states(self.model, inputs).flatten(0, 1),
            self.model.get_output_embeddings(),
            labels,
            chunk=self.chunk,
        )


class AnswerObjective(CausalLMObjective):
    """The same for prompts with answers, padded at the end: only tokens of answers have labels."""

    def token_counts(self, batch: Batch) -> Tensor:
        """The speed is that of all tokens that are read."""
        real = batch["attention_mask"].sum()
        return torch.stack([real, real, torch.full_like(real, batch["attention_mask"].numel())]).to(torch.float64)


class TruncatedBPTTObjective(CausalLMObjective):
    """The same for a recurrent model that goes on from the state in which it left the block before (truncated
    backpropagation through time): gradients stop at the beginning of a block, what the model remembers does not.

    The batch says which stream of text each row is, and whether it begins there.
    """

    def __init__(self, model: PreTrainedModel, streams: int, chunk: int | None = None):
        super().__init__(model, chunk)
        self.streams = streams
        self._state: dict[str, Tensor] = {}  # (streams, width) each
        self._mine = torch.zeros(streams, dtype=torch.bool)

    def summed_loss(self, batch: Batch) -> Tensor:
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
        self._mine[rows.cpu()] = True
        head = self.model.get_output_embeddings()
        return chunked_cross_entropy(hidden.flatten(0, 1), head, batch["labels"].flatten(), chunk=self.chunk)

    def carried_state(self) -> dict[str, Tensor]:
        return self._state

    def load_carried_state(self, tensors: dict[str, Tensor]) -> None:
        device = self.model.get_output_embeddings().weight.device
        self._state = {name: tensor.to(device) for name, tensor in tensors.items()}
        self._mine = torch.zeros(self.streams, dtype=torch.bool)

    def local_streams(self) -> Tensor:
        return self._mine


def capture_head_input(seen: list[Tensor]) -> Any:
    """For `replace_head_input`: keep what the output layer is given, and give it nothing to do."""

    def keep(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden[..., :0, :]

    return keep


def hidden_states(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """What the output layer of a model is given, (batch, time, width), without computing the output layer."""
    seen: list[Tensor] = []
    with replace_head_input(model.get_output_embeddings(), capture_head_input(seen)):
        model(**inputs)
    return seen[0]


def logits_of(outputs: Any) -> Tensor:
    """The logits over the vocabulary, which have another name where there is a second head."""
    return outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits


def upcast(logits: Tensor) -> Tensor:
    """Logits in 32 bits at least, as losses need them."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def trial(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """A few tokens for a model to read, for whoever wants to find out what it does with them."""
    was_training, device = model.training, model.get_output_embeddings().weight.device
    model.eval()
    try:
        with torch.no_grad():
            tokens = torch.arange(4, device=device).remainder(model.get_output_embeddings().weight.shape[0])
            yield {"input_ids": tokens.reshape(1, 4)}
    finally:
        model.train(was_training)


def is_plain_head(model: PreTrainedModel) -> bool:
    """Whether a model's logits are its output layer applied to the hidden states and nothing else: some scale or cap
    them. Tried out, not looked up, so that it holds for any class."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    with trial(model) as inputs:
        return logits_match(logits_of(model(**inputs)), head(hidden_states(model, inputs)))


def prediction_head(model: PreTrainedModel) -> str:
    """Name of the outermost module that can be given some positions alone: the whole prediction head of a masked
    language model, or its output layer. Tried out, too."""
    output = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is output)
    outermost = name.split(".")[0]
    with trial(model) as inputs:
        some = torch.tensor([[False, True, False, True]])
        expected = logits_of(model(**inputs))[some]
        try:
            with replace_head_input(model.get_submodule(outermost), lambda hidden: hidden[some]):
                found = logits_of(model(**inputs))
        except Exception:  # whatever it may be that it cannot do with fewer positions
            return name
    return outermost if logits_match(found, expected) else name


def logits_match(logits: Tensor, others: Tensor) -> bool:
    """Whether two ways to compute logits are the same up to rounding."""
    return logits.shape == others.shape and torch.allclose(logits, others, rtol=1e-4, atol=1e-5)
