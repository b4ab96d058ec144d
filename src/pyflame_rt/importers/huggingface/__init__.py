"""Folders of Hugging Face models (config.json, safetensors) to graphs, without transformers."""
