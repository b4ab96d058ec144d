"""Models by name."""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ModelInfo", "get_model", "list_models", "model_info", "register_model", "unregister_model"]


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model.

    Attributes:
        name: What it is asked for by.
        constructor: Makes one.
        description: One sentence.
        default_config: Arguments of the constructor where the caller gives none.
        tags: What it is for.
        aliases: Further names.
    """

    name: str
    constructor: Callable[..., Any]
    description: str = ""
    default_config: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


_models: dict[str, ModelInfo] = {}
_names: dict[str, str] = {}
_lock = threading.Lock()
_ours_added = False


@names_arguments
def register_model(
    name: str,
    constructor: Callable[..., Any] | None = None,
    *,
    description: str = "",
    default_config: dict[str, Any] | None = None,
    tags: Sequence[str] = (),
    aliases: Sequence[str] = (),
) -> Any:
    """Make a model known by a name; without a constructor, a decorator.

    Example:
        >>> import pyflame as pf
        >>> @pf.hub.register_model("doubler", tags=["example"])
        ... def doubler(size=3):
        ...     return pf.nn.Linear(size, 2 * size)
        >>> pf.hub.get_model("doubler", size=2)
        Linear(in_features=2, out_features=4, bias=True)
        >>> pf.hub.unregister_model("doubler")
    """
    if constructor is None:
        return lambda made: register_model(
            name, made, description=description, default_config=default_config, tags=tags, aliases=aliases
        )
    if not callable(constructor):
        raise TypeError(f"a constructor is called. Received: {type(constructor).__name__}")
    _add_ours()
    about = description or next(iter((constructor.__doc__ or "").splitlines()), "")
    _add(ModelInfo(name, constructor, about, dict(default_config or {}), tuple(tags), tuple(aliases)))
    return constructor


def _add(info: ModelInfo) -> None:
    with _lock:
        for text in (info.name, *info.aliases):
            if not text:
                raise ValueError("a model's name needs at least one letter")
            if text in _names:
                raise ValueError(f"there is already a model {text!r}; unregister_model({text!r}) first")
        _models[info.name] = info
        _names.update(dict.fromkeys((info.name, *info.aliases), info.name))


@names_arguments
def unregister_model(name: str) -> None:
    """Forget a model."""
    info = model_info(name)
    with _lock:
        del _models[info.name]
        for text in (info.name, *info.aliases):
            del _names[text]


def _add_ours() -> None:
    """The models of `pf.models`, once."""
    global _ours_added
    if _ours_added:
        return
    _ours_added = True
    from pyflame import models

    vision = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d",
              "wide_resnet50_2", "wide_resnet101_2", "mobilenet_v2", "vit_tiny", "vit_small", "vit_base")  # fmt: skip
    for name in vision:
        _ours(name, getattr(models, name), ("vision", "classification"))
    _ours("unet", models.UNet, ("vision", "segmentation"))
    _ours("bert", _from_config(models.BertModel, models.BertConfig), ("text", "encoder"), ("bert-base-uncased",))
    _ours("gpt2", _from_config(models.GPT2, models.GPT2Config), ("text", "decoder"))
    _ours("llama", _from_config(models.Llama, models.LlamaConfig), ("text", "decoder"))


def _ours(name: str, constructor: Callable[..., Any], tags: tuple[str, ...], aliases: tuple[str, ...] = ()) -> None:
    about = next(iter((constructor.__doc__ or "").splitlines()), "")
    _add(ModelInfo(name, constructor, about, {}, tags, aliases))


def _from_config(kind: type, config: type) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        return kind(config(**settings))

    make.__doc__ = kind.__doc__
    return make


@names_arguments
def get_model(name: str, pretrained: bool | str = False, **settings: Any) -> Any:
    """Make a model.

    Args:
        name: As :func:`list_models` has it.
        pretrained: Load weights: True for those called "default", or their name.
        settings: Of the model's constructor.

    Example:
        >>> import pyflame as pf
        >>> model = pf.hub.get_model("resnet18", num_classes=10)
        >>> model.fc.out_features
        10
    """
    info = model_info(name)
    model = info.constructor(**{**info.default_config, **settings})
    if pretrained:
        from pyflame.hub.weights import load_pretrained

        load_pretrained(model, info.name, "default" if pretrained is True else pretrained)
    return model


@names_arguments
def list_models(tag: str | None = None) -> list[str]:
    """Names of the models, of those with a tag when one is given.

    Example:
        >>> import pyflame as pf
        >>> "gpt2" in pf.hub.list_models(tag="text")
        True
    """
    _add_ours()
    return sorted(name for name, info in _models.items() if tag is None or tag in info.tags)


@names_arguments
def model_info(name: str) -> ModelInfo:
    """What is known of a model.

    Example:
        >>> import pyflame as pf
        >>> pf.hub.model_info("resnet50").tags
        ('vision', 'classification')
    """
    _add_ours()
    if name not in _names:
        near = difflib.get_close_matches(name, _names, 3)
        hint = f" Did you mean {', '.join(near)}?" if near else " list_models() names all."
        raise KeyError(f"there is no model {name!r}.{hint}")
    return _models[_names[name]]
