"""Models by name, and files of weights for them."""

from pyflame.hub.registry import ModelInfo, get_model, list_models, model_info, register_model, unregister_model
from pyflame.hub.weights import (
    WeightInfo,
    cache_info,
    clear_cache,
    download_weights,
    get_weight_path,
    list_pretrained,
    load_pretrained,
    register_weights,
    unregister_weights,
    weight_info,
)

__all__ = [
    "ModelInfo",
    "WeightInfo",
    "cache_info",
    "clear_cache",
    "download_weights",
    "get_model",
    "get_weight_path",
    "list_models",
    "list_pretrained",
    "load_pretrained",
    "model_info",
    "register_model",
    "register_weights",
    "unregister_model",
    "unregister_weights",
    "weight_info",
]
