"""Vision transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame import nn
from pyflame.nn.making import empty_parameter
from pyflame.ops.shaping import cat
from pyflame_rt.graph.named_arguments import expect_fields

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["ViT", "ViTConfig", "vit_base", "vit_small", "vit_tiny"]


@dataclass(frozen=True)
class ViTConfig:
    """The shape of a vision transformer.

    Example:
        >>> from pyflame.models import ViTConfig
        >>> ViTConfig(image_size=32, patch_size=8).patches
        16
    """

    image_size: int = 224
    patch_size: int = 16
    in_channels: int = 3
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_size: int = 3072
    num_classes: int = 1000
    dropout: float = 0.0

    def __post_init__(self) -> None:
        expect_fields(self)
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size must be a multiple of patch_size. Received: {self}")

    @property
    def patches(self) -> int:
        """How many patches an image has."""
        return (self.image_size // self.patch_size) ** 2


class ViT(nn.Module):
    """Patches of an image as a sequence, and a transformer over them.

    Example:
        >>> import pyflame as pf
        >>> settings = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "mlp_size": 64, "num_classes": 10}
        >>> model = pf.models.ViT(pf.models.ViTConfig(image_size=32, patch_size=8, **settings))
        >>> model(pf.ones([2, 3, 32, 32])).shape
        [2, 10]
    """

    def __init__(self, config: ViTConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or ViTConfig()
        self.patch_embed = nn.Conv2d(c.in_channels, c.hidden_size, c.patch_size, stride=c.patch_size)
        self.cls_token = empty_parameter([1, 1, c.hidden_size])
        self.pos_embed = empty_parameter([1, c.patches + 1, c.hidden_size])
        layer = nn.TransformerEncoderLayer(
            c.hidden_size, c.num_heads, c.mlp_size, c.dropout, "gelu", 1e-6, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, c.num_layers, nn.LayerNorm(c.hidden_size, 1e-6))
        self.head = nn.Linear(c.hidden_size, c.num_classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, x: Any) -> Tensor:
        """The scores of the classes."""
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(patches.shape[0], 1, self.config.hidden_size)
        return self.head(self.encoder(cat([first, patches], dim=1) + self.pos_embed)[:, 0])


def vit_tiny(**settings: Any) -> ViT:
    """ViT-Ti: 192 wide, 3 heads."""
    return ViT(ViTConfig(**{"hidden_size": 192, "num_heads": 3, "mlp_size": 768, **settings}))


def vit_small(**settings: Any) -> ViT:
    """ViT-S: 384 wide, 6 heads."""
    return ViT(ViTConfig(**{"hidden_size": 384, "num_heads": 6, "mlp_size": 1536, **settings}))


def vit_base(**settings: Any) -> ViT:
    """ViT-B: 768 wide, 12 heads."""
    return ViT(ViTConfig(**settings))
