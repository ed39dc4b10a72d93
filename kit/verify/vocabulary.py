"""Proofs that tokenizers and model agree on vocabulary sizes and special tokens."""

from kit.verify.proof import Outcome, proof
from kit.verify.subject import Subject, end_markers, is_seq2seq


def has_tokenizers(subject: Subject) -> bool:
    """An encoder-decoder that comes with its tokenizers."""
    return subject.tokenizers is not None and is_seq2seq(subject)


@proof("tokenizers", "every token has a vector and a logit, and PAD and the end marker are the model's", has_tokenizers)
def tokenizers_fit(subject: Subject) -> Outcome:
    assert subject.tokenizers is not None
    source, target = subject.tokenizers.source, subject.tokenizers.target
    config = subject.model.generation_config
    ends = end_markers(subject.model)
    vectors = subject.model.get_input_embeddings().num_embeddings
    logits = subject.model.get_output_embeddings().weight.shape[0]
    complaints = [
        message
        for wrong, message in (
            (len(source) > vectors, f"{len(source)} source tokens, {vectors} vectors"),
            (len(target) > logits, f"{len(target)} target tokens, {logits} logits"),
            (source.pad_token_id != config.pad_token_id, f"PAD is {source.pad_token_id}, not {config.pad_token_id}"),
            (target.eos_token_id not in ends, f"the end marker is {target.eos_token_id}, not {config.eos_token_id}"),
        )
        if wrong
    ]
    return Outcome(not complaints, "; ".join(complaints) or f"{len(source)} source and {len(target)} target tokens fit")
