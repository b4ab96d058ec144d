"""Text out of decoders: tokens one by one, many sequences at a time."""

from pyflame_rt.generate.beams import Beam, BeamParams, beam_search
from pyflame_rt.generate.cache import KVCache
from pyflame_rt.generate.decoder import Decoder
from pyflame_rt.generate.generator import Completion, Generator, Sequence
from pyflame_rt.generate.prefix import PrefixCache
from pyflame_rt.generate.sampling import Sampler, SamplingParams, Token
from pyflame_rt.generate.speculative import SpeculativeGenerator
from pyflame_rt.generate.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "Beam",
    "BeamParams",
    "Completion",
    "Decoder",
    "Generator",
    "KVCache",
    "PrefixCache",
    "Sampler",
    "SamplingParams",
    "Sequence",
    "SpeculativeGenerator",
    "Token",
    "Tokenizer",
    "beam_search",
    "load_tokenizer",
]
