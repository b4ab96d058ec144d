"""Text from a model, token by token: with keys and values kept where the model is a decoder of a known family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt, as_generator
from pyflame.autograd import no_grad

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Generator"]


class Generator:
    """Adds `generate` to a model that gives the scores of the next token.

    Attributes:
        max_length: Tokens that the model sees at most.
        family: The family of decoders it is of, for those that keep keys and values; "" for others.
    """

    max_length: int
    family: str = ""

    def decoder_settings(self) -> Mapping[str, Any]:
        """The settings of the model, with the names of its family."""
        return {}

    def generate(
        self,
        input_ids: Any,
        max_new_tokens: int = 20,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        eos_token_id: int | None = None,
        generator: np.random.Generator | int | None = None,
    ) -> np.ndarray:
        """Continue sequences [N, L]: the best token each time, or drawn where the temperature is above zero.

        GPT2 and Llama go by :class:`pyflame_rt.generate.Generator`: each step reads one token. Other models read the
        whole sequence again, and so do these once it is longer than ``max_length``, of which they then see the end.

        Args:
            input_ids: The beginnings, of one length.
            max_new_tokens: How many tokens to add at most.
            temperature: 0 takes the best; higher is more daring.
            top_k: Draw only among the best so many.
            eos_token_id: A sequence that reached this token repeats it; when all have, generation ends.
            generator: A NumPy generator or a seed.
        """
        ids = np.asarray(input_ids.numpy() if hasattr(input_ids, "numpy") else input_ids, np.int64)
        random = as_generator(generator)
        fits = ids.shape[1] + max_new_tokens <= self.max_length
        if self.family and fits and ids.size and max_new_tokens > 0:
            return self._continued(ids, max_new_tokens, temperature, top_k, eos_token_id, random)
        done = np.zeros(len(ids), bool)
        was_training = self.training  # type: ignore[attr-defined]
        self.eval()  # type: ignore[attr-defined]
        try:
            for _ in range(max_new_tokens):
                with no_grad():
                    scores = self(adopt(ids[:, -self.max_length :]))[:, -1].numpy()  # type: ignore[operator]
                following = _choose(scores, temperature, top_k, random)
                if eos_token_id is not None:
                    following = np.where(done, eos_token_id, following)
                    done |= following == eos_token_id
                ids = np.concatenate([ids, following[:, None]], axis=1)
                if done.all():
                    break
        finally:
            self.train(was_training)  # type: ignore[attr-defined]
        return ids

    def _continued(
        self,
        ids: np.ndarray,
        count: int,
        temperature: float,
        top_k: int | None,
        end: int | None,
        random: np.random.Generator,
    ) -> np.ndarray:
        """With keys and values kept; weights are taken as they are now."""
        from pyflame_rt.generate import Generator as Runner
        from pyflame_rt.generate import SamplingParams
        from pyflame_rt.session import InferenceSession

        runner = Runner(InferenceSession(self._decoder_graph()), max_batch_size=len(ids), prefix_cache_bytes=0)
        seeds = random.integers(2**63, size=len(ids)).tolist()
        asked = [
            SamplingParams(count, temperature=max(temperature, 0.0), top_k=top_k or 0, eos_token_id=end, seed=seed)
            for seed in seeds
        ]
        sequences = [runner.add(row, params) for row, params in zip(ids.tolist(), asked, strict=True)]
        while runner.active:
            runner.step()
        ended = [s.finish_reason == "stop" for s in sequences]
        width = max(len(s.tokens) + stopped for s, stopped in zip(sequences, ended, strict=True))
        fill = 0 if end is None else end
        more = [[*s.tokens, *[fill] * (width - len(s.tokens))] for s in sequences]
        return np.concatenate([ids, np.array(more, np.int64)], axis=1)

    def _decoder_graph(self) -> Any:
        from pyflame_rt.importers.huggingface.families import trace_decoder
        from pyflame_rt.importers.huggingface.folder import Settings, Weights
        from pyflame_rt.ops.core.trace import Tracer
        from pyflame_rt.ops.core.value import scope

        name = type(self).__name__
        state = self.state_dict()  # type: ignore[attr-defined]
        weights = Weights({key: value.numpy() for key, value in state.items()}, name)
        tracer = Tracer(name)
        with scope(tracer):
            trace_decoder(self.family, Settings(self.decoder_settings(), name), weights, tracer, conv1d=False)
        return tracer.graph


def _choose(scores: np.ndarray, temperature: float, top_k: int | None, random: np.random.Generator) -> np.ndarray:
    if temperature <= 0:
        return scores.argmax(axis=1)
    scaled = scores.astype(np.float64) / temperature
    if top_k is not None:
        worst = np.sort(scaled, axis=1)[:, -min(top_k, scaled.shape[1])][:, None]
        scaled = np.where(scaled < worst, -np.inf, scaled)
    chances = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return np.array([random.choice(len(row), p=row) for row in chances])
