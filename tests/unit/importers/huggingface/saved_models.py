"""Small models of transformers with random weights, saved as folders: the oracle of the importer."""

import functools
import json
import warnings

import numpy as np
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers as hf

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

# Weights this large make logits that a wrong layer would change visibly.
TEXT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
CAUSAL = {**TEXT, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
DISTIL = {
    "vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64,
    "initializer_range": 0.2,
}  # fmt: skip
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
IMAGE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4, "initializer_range": 0.2,
}  # fmt: skip
CLIP_TEXT = {**TEXT, "max_position_embeddings": 20, "projection_dim": 24}
WHISPER = {
    "vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "init_std": 0.2,
}  # fmt: skip
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SHARP = {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 16, "beta_slow": 2}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 3.0}
APART = {"tie_word_embeddings": False}


def clip_settings(eos: int) -> dict:
    """Settings of CLIP, its parts among them."""
    text = {**CLIP_TEXT, "eos_token_id": eos, "bos_token_id": 97}
    return {"text_config": text, "vision_config": {**IMAGE, "projection_dim": 24}, "projection_dim": 24}


# What a test asks for: the architecture, the class of its settings, and the settings.
MODELS = {
    "bert": ("BertModel", "BertConfig", TEXT),
    "bert masked": ("BertForMaskedLM", "BertConfig", TEXT),
    "bert classes": ("BertForSequenceClassification", "BertConfig", {**TEXT, "num_labels": 3}),
    "bert tokens": ("BertForTokenClassification", "BertConfig", {**TEXT, "num_labels": 5}),
    "bert spans": ("BertForQuestionAnswering", "BertConfig", TEXT),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", TEXT),
    "roberta classes": ("RobertaForSequenceClassification", "RobertaConfig", TEXT),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL),
    "distilbert classes": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2 states": ("GPT2Model", "GPT2Config", GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL),
    "llama 3": ("LlamaForCausalLM", "LlamaConfig", {**CAUSAL, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama biased": ("LlamaForCausalLM", "LlamaConfig", {**CAUSAL, "attention_bias": True, "mlp_bias": True}),
    "llama yarn": ("LlamaForCausalLM", "LlamaConfig", {**CAUSAL, "rope_parameters": YARN}),
    "mistral yarn": ("MistralForCausalLM", "MistralConfig", {**CAUSAL, "rope_parameters": SHARP}),
    "llama dynamic": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**CAUSAL, "max_position_embeddings": 8, "rope_parameters": DYNAMIC},
    ),
    "phi tied": ("PhiForCausalLM", "PhiConfig", {**CAUSAL, "tie_word_embeddings": True}),
    "bert apart": ("BertForMaskedLM", "BertConfig", {**TEXT, **APART}),
    "roberta apart": ("RobertaForMaskedLM", "RobertaConfig", {**TEXT, **APART}),
    "distilbert apart": ("DistilBertForMaskedLM", "DistilBertConfig", {**DISTIL, **APART}),
    "whisper apart": ("WhisperForConditionalGeneration", "WhisperConfig", {**WHISPER, **APART}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", CAUSAL),
    "qwen2 window": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**CAUSAL, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**CAUSAL, "sliding_window": 5}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**CAUSAL, "head_dim": 12}),
    "phi": ("PhiForCausalLM", "PhiConfig", CAUSAL),
    "phi norms": ("PhiForCausalLM", "PhiConfig", {**CAUSAL, "qk_layernorm": True}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5 gated": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
    ),
    "t5 encoder": ("T5EncoderModel", "T5Config", {**T5, "relative_attention_max_distance": 20}),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE),
    "vit states": ("ViTModel", "ViTConfig", IMAGE),
    "clip": ("CLIPModel", "CLIPConfig", clip_settings(98)),
    "clip before": ("CLIPModel", "CLIPConfig", clip_settings(2)),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", RESNET),
    "resnet basic": (
        "ResNetModel",
        "ResNetConfig",
        {**RESNET, "layer_type": "basic", "downsample_in_first_stage": True},
    ),
}


def save(name: str, folder) -> torch.nn.Module:
    """Make a model, save it, and give it."""
    architecture, settings, values = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    values = json.loads(json.dumps(values))  # transformers changes what it is given
    model = getattr(hf, architecture)(getattr(hf, settings)(**values)).eval()
    with torch.no_grad():
        for part, tensor in model.named_parameters():
            if tensor.ndim == 1:  # biases and scales of norms, which begin as zeros and ones
                tensor += 0.1 * torch.randn_like(tensor)
            elif "relative_attention_bias" in part:
                tensor.normal_()
        for part, tensor in model.named_buffers():
            if "running" in part:
                tensor += 0.3 * torch.rand_like(tensor)
    model.save_pretrained(folder)
    return model


def feed_for(session, rng: np.random.Generator, rows: int = 2, length: int = 11) -> dict:
    """Inputs for a model: some padding, and nothing in the past."""
    feed = {}
    for info in session.get_inputs():
        if info.name in ("input_ids", "decoder_input_ids"):
            feed[info.name] = rng.integers(3, 97, (rows, length))
        elif info.name == "attention_mask":
            feed[info.name] = np.ones((rows, length), np.int64)
            feed[info.name][1, -3:] = 0
        elif info.name == "position_ids":
            feed[info.name] = np.tile(np.arange(length), (rows, 1))
        elif info.name == "token_type_ids":
            feed[info.name] = rng.integers(0, 2, (rows, length))
        elif info.name.startswith("past_key_values"):
            feed[info.name] = np.zeros((rows, info.shape[1], 0, info.shape[3]), np.float32)
        else:
            open_sizes = (rows, 3, 40, 48)  # of images, where the model does not say
            shape = [d if isinstance(d, int) else n for d, n in zip(info.shape, open_sizes, strict=False)]
            feed[info.name] = rng.standard_normal(shape).astype(np.float32)
    return feed


def answers(model: torch.nn.Module, feed: dict):
    """What transformers says."""
    with torch.no_grad():
        return model(**{k: torch.from_numpy(v) for k, v in feed.items() if not k.startswith("past")})


@functools.cache
def greedy(model, prompt: tuple[int, ...], count: int) -> list[int]:
    """Tokens of transformers' own generation."""
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=count,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return ids[0, len(prompt) :].tolist()
