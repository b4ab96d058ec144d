"""Text out of decoders: tokens one by one, many sequences at a time."""

from pyflame_rt.generate.cache import KVCache
from pyflame_rt.generate.decoder import Decoder
from pyflame_rt.generate.generator import Completion, Generator, Sequence
from pyflame_rt.generate.sampling import Sampler, SamplingParams, Token

__all__ = ["Completion", "Decoder", "Generator", "KVCache", "Sampler", "SamplingParams", "Sequence", "Token"]
