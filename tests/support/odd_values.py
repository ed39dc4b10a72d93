"""Odd values: what replaces the values of JSON files and recipes."""

from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, "", "odd", "\0", "\ud800", "../../odd", -1, 0, 7, 2**31, 2**63, 10**30, -0.5, 1e308, float("nan"),
    [], [None], ["odd"], [[7]], {}, {"odd": 7},
)  # fmt: skip
"""What replaces a value of a JSON file."""

ODD_NUMBERS = (
    "-1", "0", "1", "-0.5", "0.5", "1e-300", "1e9", "1e308", "1000000", "100000000", "2147483648",
    "9223372036854775807", "9223372036854775808", "100000000000000000000000000000000",
)  # fmt: skip
"""What replaces a number of a recipe."""

ODD_SETTINGS: dict[str, tuple[str, ...]] = {
    "translation": (
        "model.use_cache=false", "model.hidden_size=1000000", "model.encoder_layers=100000000",
        "model.encoder_layers=9223372036854775808", "model.decoder_layers=100000000", "model.num_attention_heads=-1",
        "model.embedding_size=1000000000000", "tokenizer.vocab_size=9223372036854775808",
        "tokenizer.min_frequency=9223372036854775808", "eval.length_penalty=1e9", "eval.length_penalty=-1e9",
        "eval.num_beams=9223372036854775808", "eval.max_new_tokens=9223372036854775808",
        "train.tokens_per_batch=9223372036854775808", "train.micro_batches=9223372036854775808",
    ),
    "masked_lm": (
        "model.hidden_act=geluu", "model.hidden_size=1000000", "model.num_attention_heads=-1", "model.hidden_size=-16",
        "model.type_vocab_size=0", "model.type_vocab_size=9223372036854775808", "model.num_hidden_layers=100000000",
        "model.intermediate_size=9223372036854775808", "model.max_position_embeddings=100000000000",
        "model.layer_norm_eps=-1e9", "model.initializer_range=1e308",
    ),
    "causal_lm": (
        "model.use_cache=false", "model.activation_function=geluu", "model.n_embd=1000000", "model.n_layer=100000000",
        "model.n_head=0", "model.n_head=-1", "model.n_positions=9223372036854775808", "data.block_size=1000000000000",
    ),
    "classification": ("model.hidden_act=geluu", "model.type_vocab_size=0", "data.max_length=9223372036854775808"),
    "tagging": ("model.num_attention_heads=0", "model.num_hidden_layers=-1"),
    "question_answering": ("model.type_vocab_size=1", "data.doc_stride=9223372036854775808"),
    "instruction_tuning": ("model.use_cache=false", "model.n_layer=0", "eval.max_new_tokens=1000000000"),
    "captioning": (
        "model.use_cache=false", "model.cnn_blocks=9223372036854775808", "model.cnn_blocks=100000000",
        "model.image_size=1000000", "model.image_size=1", "model.cnn_channels=[9223372036854775808]",
        "model.num_channels=2",
    ),
    "dialogue": ("model.use_cache=false", "model.context_layers=100000000", "model.utterance_hidden_size=1000000"),
    "forecasting": (
        "model.hidden_size=1000000", "model.encoder_layers=100000000", "model.min_scale=1e308",
        "data.history=9223372036854775808", "data.horizon=1000000000000",
    ),
}  # fmt: skip
"""Values of the tiny recipes of `support.recipes` that were answered with a traceback, a panic or silence, and their
like."""

ODD_TEXTS = (
    "ünï😀", "a\u2028b", "\x1b[31mred", "x" * 5000, "/dev/null", "/dev/zero", "/proc/self/mem", "..", "~", "~nobody/x",
    "{}", "%s", "builtin:", "builtin:dates", "builtin:nothing", "https://user:secret@host/x", "owner/name",
    "owner/name@main", "idna", "rot13", "undefined", "unicode_escape", "utf-7", "cp037", "hex", "\t", ";", "||", "\n",
    ",", "test", "validation", "label.x", "{text}", "{", "2024-01-01", "all-linear", "embeddings", "heading",
    "blank_line", "file",
)  # fmt: skip
"""Texts that some key of a recipe gives a meaning, and another does not expect."""

ODD_ARGUMENTS = (
    "", "[", "{a: 1", "!!python/name:os.system", "&a", ".nan", "-.inf", "NaN", "'", "[" * 50, "null", "~",
    "{a: {b: 1}}", "\udcff", "a=b", "[1, [2, [3]]]", "{train: 1, train: 2}", "0b1", "1_000", "+1", "1.", "0o9",
)  # fmt: skip
"""Values of `key=value` arguments that are read in a way of their own."""
