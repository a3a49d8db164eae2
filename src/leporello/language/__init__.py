"""Language models: from a text to tokens, a trained network, its perplexity, and text of its own."""

from leporello.language.config import Config
from leporello.language.model.language_model import Evaluation, LanguageModel
from leporello.language.model.perplexity import perplexity
from leporello.language.training.train import train

__all__ = ["Config", "Evaluation", "LanguageModel", "perplexity", "train"]
