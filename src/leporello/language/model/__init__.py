"""The network of a language model, `LanguageModel`, and perplexity."""
