"""Models built from `pyflame.nn`: images, text and sequences."""

from pyflame.models.bert import BertConfig, BertForSequenceClassification, BertModel, BertOutput
from pyflame.models.gguf import load_gguf
from pyflame.models.gpt2 import GPT2, GPT2Config
from pyflame.models.llama import Llama, LlamaConfig
from pyflame.models.lstm_lm import LSTMLanguageModel
from pyflame.models.mobilenet import MobileNetV2, mobilenet_v2
from pyflame.models.resnet import (
    ResNet,
    ResNetConfig,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnext50_32x4d,
    resnext101_32x8d,
    wide_resnet50_2,
    wide_resnet101_2,
)
from pyflame.models.unet import UNet
from pyflame.models.vit import ViT, ViTConfig, vit_base, vit_small, vit_tiny
from pyflame.nn import TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "GPT2",
    "BertConfig",
    "BertForSequenceClassification",
    "BertModel",
    "BertOutput",
    "GPT2Config",
    "LSTMLanguageModel",
    "Llama",
    "LlamaConfig",
    "MobileNetV2",
    "ResNet",
    "ResNetConfig",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "UNet",
    "ViT",
    "ViTConfig",
    "load_gguf",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "vit_base",
    "vit_small",
    "vit_tiny",
    "wide_resnet50_2",
    "wide_resnet101_2",
]
