"""Text in and out: tokenizer, chat template, incremental decoding, stop strings. Knows no model."""
