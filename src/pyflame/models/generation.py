"""Text from a model, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame.arrays import adopt, as_generator
from pyflame.autograd import no_grad

__all__ = ["Generator"]


class Generator:
    """Adds `generate` to a model that gives the scores of the next token."""

    max_length: int

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
