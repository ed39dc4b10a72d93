"""What all models that write text with the recurrent decoder have in common, whatever their encoder reads."""

from typing import Any

import torch
from torch import Tensor

from .configuration_rnn_decoder import RNNTextDecoderConfig
from .encoder_decoder import EncoderDecoderBody, EncoderDecoderHead
from .recurrent import RecurrentGeneration
from .rnn_memory import RNNEncoderOutput


class RNNWriterBody(EncoderDecoderBody):
    """An encoder with the recurrent decoder: list it before the class that derives from `RNNPreTrainedModel`."""

    def checked(self, encoder_outputs: Any) -> RNNEncoderOutput:
        if isinstance(encoder_outputs, tuple) or "final_hidden" not in encoder_outputs:
            raise ValueError(
                "encoder_outputs must be what this model's encoder returns with return_dict=True: the decoder starts "
                "from the final state in it"
            )
        return encoder_outputs


class RNNWriterHead(EncoderDecoderHead, RecurrentGeneration):
    """A body with its output layer, and scheduled sampling: list it first, and `GenerationMixin` last."""

    config: RNNTextDecoderConfig

    def decoder_arguments(self) -> dict[str, Any]:
        samples = self.training and self.config.scheduled_sampling > 0  # type: ignore[attr-defined]
        return {"feed_back": self._feed_back} if samples else {}

    @torch.no_grad()
    def _predicted_token(self, readout: Tensor) -> Tensor:
        logits = self.lm_head(readout)  # (batch, vocabulary)
        if self.config.feedback == "argmax":
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(-1)

    def _feed_back(self, readout: Tensor, true_embedding: Tensor) -> Tensor:
        """Scheduled sampling: the embedding of the model's own token in place of some true ones."""
        own = self.model.target_embeddings(self._predicted_token(readout))  # (batch, embedding)
        own = self.model.decoder.disturbed(own)
        chosen = torch.rand(own.shape[0], 1, device=own.device) < self.config.scheduled_sampling
        return torch.where(chosen, own, true_embedding)
