"""Text: tokenizers (trained or pretrained), the languages a model can translate, sentences, and schemes of tags.

Tokenizers are trained and run by the `tokenizers` library; kit adds what makes training reproducible in every process
and lossless in decoding.
"""
