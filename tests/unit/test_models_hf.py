"""Models by their Hugging Face configuration: built, run the same twice, decoded rightly, or one clear sentence."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from forge_tui.core.errors import EnvironmentFault, ModelError, UsageError
from forge_tui.deploy.compare import leaves
from forge_tui.models.hf import build as hf_build
from forge_tui.models.hf import config as hf_config
from forge_tui.models.hf.cache import Snapshot
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.models.spec import ModelRequest, parse_model
from forge_tui.processes.environment import clean_environment

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "diffusers")), reason="needs forge-tui[hf]"
)

TEXT = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
TINY = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SEQ = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
       "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}  # fmt: skip
UNET = {"_class_name": "UNet2DConditionModel", "sample_size": 8, "block_out_channels": [8, 16], "layers_per_block": 1,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "norm_num_groups": 4, "attention_head_dim": 4,
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "cross_attention_dim": 16}  # fmt: skip
CONFIGS = {
    "resnet": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2],
               "layer_type": "basic", "architectures": ["ResNetForImageClassification"]},
    "gemma4": {"model_type": "gemma4_text", **TEXT, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8,
               "sliding_window": 6, "num_hidden_layers": 6},
    "qwen3_5": {"model_type": "qwen3_5_text", **TEXT, **LINEAR},
    "gpt2": {"model_type": "gpt2", "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20,
             "bos_token_id": 98, "eos_token_id": 98},
    "llama": {"model_type": "llama", **TEXT, "architectures": ["LlamaForCausalLM"]},
    "mamba": {"model_type": "mamba", "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "bert": {"model_type": "bert", **TINY},
    "bert bare": {"model_type": "bert", **TINY, "architectures": ["BertModel"]},
    "roberta": {"model_type": "roberta", **TINY, "max_position_embeddings": 20},
    "t5": {"model_type": "t5", "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": {"model_type": "bart", **SEQ, "max_position_embeddings": 20},
    "whisper": {"model_type": "whisper", **SEQ, "max_source_positions": 16, "max_target_positions": 20,
                "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                "decoder_start_token_id": 3},
    "vit": {"model_type": "vit", **TINY, "image_size": 16, "patch_size": 8},
    "clip": {"model_type": "clip", "text_config": TINY | {"bos_token_id": 1, "eos_token_id": 2},
             "vision_config": TINY | {"image_size": 16, "patch_size": 8}},
    "sd3": {"_class_name": "SD3Transformer2DModel", "sample_size": 8, "num_layers": 3, "attention_head_dim": 8,
            "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32,
            "pooled_projection_dim": 16, "pos_embed_max_size": 8, "qk_norm": "rms_norm",
            "dual_attention_layers": [0, 2]},
    "vae": {"_class_name": "AutoencoderKL", "sample_size": 32, "latent_channels": 4, "block_out_channels": [8, 8],
            "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
            "norm_num_groups": 4},
    "unet": UNET,
    "sdxl": UNET | {"addition_embed_type": "text_time", "addition_time_embed_dim": 8,
                    "projection_class_embeddings_input_dim": 64},
}  # fmt: skip
NO_TEXT = {key: {"length": None} for key in ("resnet", "vit", "vae")}
DENOISED = {"sample": (2, 4, 8, 8), "timestep": (), "encoder_hidden_states": (2, 12, 16)}
#: (class, phases with their shapes)
EXPECTED = {
    "resnet": ("ResNetForImageClassification", {"": {"pixel_values": (2, 3, 224, 224)}}),
    "gemma4": ("Gemma4ForCausalLM", {"prefill": {"input_ids": (2, 12)}, "decode": None}),
    "qwen3_5": ("Qwen3_5ForCausalLM", {"prefill": {"input_ids": (2, 12)}, "decode": None}),
    "gpt2": ("GPT2LMHeadModel", {"prefill": {"input_ids": (2, 12)}, "decode": None}),
    "llama": ("LlamaForCausalLM", {"prefill": {"input_ids": (2, 12)}, "decode": None}),
    "mamba": ("MambaForCausalLM", {"prefill": {"input_ids": (2, 12)}, "decode": None}),
    "bert": ("BertForMaskedLM", {"": {"input_ids": (2, 12)}}),
    "bert bare": ("BertModel", {"": {"input_ids": (2, 12)}}),
    "roberta": ("RobertaForMaskedLM", {"": {"input_ids": (2, 12)}}),
    "t5": ("T5ForConditionalGeneration",
           {"prefill": {"input_ids": (2, 12), "decoder_input_ids": (2, 1)}, "decode": None}),
    "bart": ("BartForConditionalGeneration",
             {"prefill": {"input_ids": (2, 12), "decoder_input_ids": (2, 1)}, "decode": None}),
    "whisper": ("WhisperForConditionalGeneration",
                {"prefill": {"input_features": (2, 8, 32), "decoder_input_ids": (2, 1)}, "decode": None}),
    "vit": ("ViTForImageClassification", {"": {"pixel_values": (2, 3, 16, 16)}}),
    "clip": ("CLIPModel", {"": {"input_ids": (2, 12), "pixel_values": (2, 3, 16, 16)}}),
    "sd3": ("SD3Transformer2DModel", {"": {"hidden_states": (2, 16, 8, 8), "encoder_hidden_states": (2, 12, 32),
                                           "pooled_projections": (2, 16), "timestep": (2,)}}),
    "vae": ("AutoencoderKL", {"": None}),
    "unet": ("UNet2DConditionModel", {"": DENOISED}),
    "sdxl": ("UNet2DConditionModel", {"": DENOISED}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    """Small models are slower with several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(tmp_path: Path, config: dict, name: str = "config.json", seed: int = 0, phases=(), **said) -> LoadedModel:
    """The model of a configuration in a folder of its own."""
    path = tmp_path / name
    path.write_text(json.dumps(config))
    request = ModelRequest(phases=phases, **{"batch": 2, "length": 12} | said)
    return load_model(parse_model(f"hf:{path if name != 'config.json' else tmp_path}", request), "cpu", seed)


def same(a: object, b: object) -> bool:
    """Whether two outputs hold the same bits."""
    first, second = list(leaves(a)), list(leaves(b))
    return len(first) == len(second) and all(
        p == q and (torch.equal(x, y) if isinstance(x, Tensor) else x == y)
        for (p, x), (q, y) in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_models(tmp_path: Path, name: str):
    """Every kind of model is built and has its phases; each call gives the same finite outputs again."""
    loaded = load(tmp_path, CONFIGS[name], **NO_TEXT.get(name, {}))
    kind, phases = EXPECTED[name]
    assert type(loaded.module).__name__ == kind
    assert type(loaded.module).__module__ in loaded.own_modules
    shapes = {p.name: {k: tuple(v.shape) for k, v in p.kwargs.items() if isinstance(v, Tensor)} or None
              for p in loaded.phases}  # fmt: skip
    assert shapes == phases
    assert [p.weight for p in loaded.phases] == ([1.0, 128.0] if len(phases) == 2 else [1.0])
    for phase in loaded.phases:
        out = list(leaves(phase.run(loaded.module)))
        tensors = [leaf for _, leaf in out if isinstance(leaf, Tensor)]
        assert tensors
        assert all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())
        assert same(phase.run(loaded.module), phase.run(loaded.module))
    assert same(loaded.run(), loaded.run())
    assert not any(p.requires_grad for p in loaded.module.parameters())


@pytest.mark.parametrize("name", ["gemma4", "qwen3_5", "gpt2", "llama", "mamba"])
def test_decode_goes_on_where_prefill_ended(tmp_path: Path, name: str):
    """The decode step's logits are those of the last of `length` + 1 tokens, however often it has run."""
    loaded = load(tmp_path, CONFIGS[name], dtype="float64", phases=("decode=3",))
    prefill, decode = loaded.phases
    for _ in range(3):
        logits = decode.run(loaded.module).logits
    token = decode.workload._kwargs["input_ids"]
    whole = torch.cat([prefill.kwargs["input_ids"], token], dim=1)
    assert whole.shape == (2, 13)
    wanted = loaded.module(input_ids=whole, use_cache=False).logits[:, -1:]
    close = 1e-9 if name != "qwen3_5" else 1e-6  # its recurrence is in float32 whatever the dtype
    assert torch.allclose(logits, wanted, rtol=close, atol=close)
    assert not torch.allclose(prefill.run(loaded.module).logits, wanted, rtol=1e-3)
    assert decode.weight == 3.0


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_decoder_goes_on_after_the_encoder(tmp_path: Path, name: str):
    """An encoder-decoder's step reads the encoder's result and as many tokens as `length` says, every time."""
    loaded = load(tmp_path, CONFIGS[name], dtype="float64")
    _, decode = loaded.phases
    cache = decode.workload._snapshot.cache
    first = decode.run(loaded.module)
    assert cache.get_seq_length() == 13
    assert same(first.logits, decode.run(loaded.module).logits)
    assert cache.get_seq_length() == 13


def test_states_that_are_written_in_place_are_put_back(tmp_path: Path):
    """A hybrid cache has states of convolutions and recurrences in the same tensors; keys are bound anew."""
    loaded = load(tmp_path, CONFIGS["qwen3_5"], dtype="bfloat16")
    snapshot = loaded.phases[1].workload._snapshot
    assert len(snapshot._written) == 6
    snapshot.restore()
    layers = snapshot.cache.layers
    before = [layers[0].conv_states[0].clone(), layers[0].recurrent_states[0].clone(), layers[3].keys]
    addresses = [layers[0].conv_states[0].data_ptr(), layers[0].recurrent_states[0].data_ptr()]
    loaded.phases[1].run(loaded.module)
    assert not torch.equal(layers[0].recurrent_states[0], before[1])
    assert layers[3].keys.shape[-2] == 13
    snapshot.restore()
    assert torch.equal(layers[0].conv_states[0], before[0])
    assert torch.equal(layers[0].recurrent_states[0], before[1])
    assert layers[3].keys is before[2]
    # graphs and compiled code read states by address
    assert [layers[0].conv_states[0].data_ptr(), layers[0].recurrent_states[0].data_ptr()] == addresses


def test_a_cache_of_any_shape_is_put_back():
    """Nested objects, lists, dictionaries, tuples, counters and NaN; a write without a version counter is seen."""

    class Part:
        def __init__(self):
            self.state = {"a": torch.full((4,), math.nan), "n": 0}
            self.parts = [torch.zeros(3)]
            self.pair = (torch.ones(2), "x")
            self.still = torch.arange(3)
            self.me = self

    cache = Part()
    state, part, pair = cache.state["a"], cache.parts[0], cache.pair[0]
    snapshot = Snapshot(cache)

    def step():
        cache.state["n"] += 1
        cache.state["new"] = 1
        cache.parts.append(torch.ones(1))
        part.data.add_(1)  # no version counter moves
        pair.mul_(3)
        cache.extra = True

    snapshot.learn(step)
    assert {t.data_ptr() for t in snapshot._written} == {part.data_ptr(), pair.data_ptr()}
    step()
    step()
    snapshot.restore()
    assert cache.state == {"a": state, "n": 0}
    assert len(cache.parts) == 1
    assert torch.equal(part, torch.zeros(3))
    assert torch.equal(pair, torch.ones(2))
    assert not hasattr(cache, "extra")


def test_seed_and_dtype(tmp_path: Path):
    """One seed gives one model; another gives others; the dtype is that of the request, else of the configuration."""
    first, again = (load(tmp_path, CONFIGS["llama"]) for _ in range(2))
    other = load(tmp_path, CONFIGS["llama"], seed=1)
    assert same(first.run(), again.run())
    assert not torch.equal(first.phases[0].kwargs["input_ids"], other.phases[0].kwargs["input_ids"])
    assert not torch.equal(first.module.lm_head.weight, other.module.lm_head.weight)
    assert first.module.lm_head.weight.dtype == torch.float32
    half = load(tmp_path, CONFIGS["llama"] | {"dtype": "bfloat16"})
    assert half.module.lm_head.weight.dtype == torch.bfloat16
    # rotary frequencies stay in float32, as the library keeps them
    assert half.module.model.rotary_emb.inv_freq.dtype == torch.float32
    asked = load(tmp_path, CONFIGS["llama"] | {"dtype": "bfloat16"}, dtype="float16")
    assert asked.module.lm_head.weight.dtype == torch.float16
    assert torch.get_default_dtype() == torch.float32


def test_diffusion_inputs_take_the_dtype_but_the_timestep(tmp_path: Path):
    """Latents and texts are in the model's dtype; timesteps keep their precision."""
    loaded = load(tmp_path, CONFIGS["sd3"], dtype="bfloat16")
    dtypes = {k: v.dtype for k, v in loaded.phases[0].kwargs.items() if isinstance(v, Tensor)}
    assert dtypes == {"hidden_states": torch.bfloat16, "encoder_hidden_states": torch.bfloat16,
                      "pooled_projections": torch.bfloat16, "timestep": torch.float32}  # fmt: skip
    assert torch.get_default_dtype() == torch.float32
    (out,) = loaded.run()
    assert (out.dtype, out.shape) == (torch.bfloat16, (2, 16, 8, 8))
    assert load(tmp_path, CONFIGS["sd3"], length=None).phases[0].kwargs["encoder_hidden_states"].shape[1] == 333


def test_vae_decodes(tmp_path: Path):
    """An autoencoder's call decodes latents of the size that its images have."""
    loaded = load(tmp_path, CONFIGS["vae"], length=None)
    assert loaded.has_workload
    (image,) = loaded.run()
    assert loaded.phases[0].workload.latents.shape == (2, 4, 16, 16)
    assert image.shape == (2, 3, 32, 32)


def test_attention_is_chosen(tmp_path: Path):
    """`--attention` is the library's implementation, and its functions are the model's own."""
    eager = load(tmp_path, CONFIGS["llama"], attention="eager", dtype="float64")
    sdpa = load(tmp_path, CONFIGS["llama"], attention="sdpa", dtype="float64")
    assert eager.module.config._attn_implementation == "eager"
    assert sdpa.module.config._attn_implementation == "sdpa"
    assert "transformers.integrations.sdpa_attention" in sdpa.own_modules
    assert "transformers.integrations.sdpa_attention" not in eager.own_modules
    a, b = (m.phases[0].run(m.module).logits for m in (eager, sdpa))
    assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "layers", "counted"),
    [
        ("llama", 2, lambda m: len(m.model.layers)), ("gpt2", 1, lambda m: len(m.transformer.h)),
        ("t5", 1, lambda m: len(m.encoder.block)), ("t5", 1, lambda m: len(m.decoder.block)),
        ("bart", 1, lambda m: len(m.model.decoder.layers)), ("clip", 1, lambda m: len(m.vision_model.encoder.layers)),
        ("clip", 1, lambda m: len(m.text_model.encoder.layers)), ("sd3", 2, lambda m: len(m.transformer_blocks)),
        ("resnet", 1, lambda m: len(m.resnet.encoder.stages[1].layers)),
    ],
)  # fmt: skip
def test_layers_are_limited(tmp_path: Path, name: str, layers: int, counted):
    """Every stack has at most so many layers, and the model still runs."""
    loaded = load(tmp_path, CONFIGS[name], layers=layers, **NO_TEXT.get(name, {}))
    assert counted(loaded.module) == layers
    assert list(leaves(loaded.run()))


def test_lists_of_layers_are_cut_too(tmp_path: Path):
    """Kinds of layers that are given one by one are cut with them; what the file leaves out comes from its class."""
    kinds = ["linear_attention", "full_attention"] * 3
    loaded = load(tmp_path, CONFIGS["qwen3_5"] | {"num_hidden_layers": 6, "layer_types": kinds}, layers=2)
    assert loaded.module.config.layer_types == kinds[:2]
    bare = {"model_type": "llama", "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 4}  # fmt: skip
    assert len(load(tmp_path, bare, layers=3).module.model.layers) == 3
    assert load(tmp_path, CONFIGS["llama"], layers=50).module.config.num_hidden_layers == 4


def test_cut():
    """Stacks, lists with one entry a layer, tables by layer and lists of layers' numbers; nothing else."""
    complete = {
        "num_hidden_layers": 4, "kinds": list("abcd"), "image_size": [7, 7, 7, 7][:2], "num_kv_shared_layers": 2,
        "per_layer": {"00": 1, "3": 2}, "id2label": {"0": "x", "3": "y"}, "mlp_only_layers": [0, 3],
        "architectures": ["A", "B", "C"], "depths": [1, 5], "hidden_sizes": [4] * 5, "layers_per_block": 9,
        "text_config": {"model_type": "t", "n_layer": 3, "deep": {"num_layers": 9}}, "vision_config": {"depth": 1},
    }  # fmt: skip
    found = hf_config.cut(complete, complete, 2)
    assert found == complete | {
        "num_hidden_layers": 2, "kinds": ["a", "b"], "num_kv_shared_layers": 1, "per_layer": {"00": 1},
        "mlp_only_layers": [0], "depths": [1, 2],
        "text_config": {"model_type": "t", "n_layer": 2, "deep": {"num_layers": 2}},
    }  # fmt: skip
    assert hf_config.cut({}, complete, 2) == {
        "num_hidden_layers": 2, "num_kv_shared_layers": 1, "depths": [1, 2],
        "text_config": {"model_type": "t", "n_layer": 2, "deep": {"num_layers": 2}},
    }  # fmt: skip
    assert hf_config.cut(complete, complete, 9) == complete


def test_tokens_are_plain_ones(tmp_path: Path):
    """No token of a text means something special, such as an image's place or padding."""
    special = {"pad_token_id": 3, "image_token_id": 5, "eos_token_id": [0, 7], "bos_token_id": 1}
    loaded = load(tmp_path, CONFIGS["llama"] | {"vocab_size": 9} | special, length=64)
    ids = loaded.phases[0].kwargs["input_ids"]
    assert set(ids.unique().tolist()) == {2, 4, 6, 8}
    large = load(tmp_path, CONFIGS["llama"] | {"vocab_size": 700, "bos_token_id": 0, "eos_token_id": 1}, length=4000)
    assert set(range(2, 700)) >= set(large.phases[0].kwargs["input_ids"].unique().tolist())


@pytest.mark.parametrize(("name", "most"), [("gpt2", 19), ("roberta", 18), ("bart", 19)])
def test_length_fits_the_positions(tmp_path: Path, name: str, most: int):
    """Without a length there are as many tokens as positions (decoding takes one); a longer one is refused."""
    loaded = load(tmp_path, CONFIGS[name], length=None)
    assert loaded.run() is not None
    whole = loaded.phases[0].kwargs["input_ids"].shape[1]
    assert whole == (most if name != "bart" else 20)
    if name != "bart":
        with pytest.raises(UsageError, match=rf"--length {most + 1} is more than .*Give at most {most}\."):
            load(tmp_path, CONFIGS[name], length=most + 1)


def test_phases_are_weighted(tmp_path: Path):
    """A phase of weight 0 is left out; a name that is none is refused with those that are."""
    loaded = load(tmp_path, CONFIGS["llama"], phases=("decode=0", "prefill=2"))
    assert [(p.name, p.weight) for p in loaded.phases] == [("prefill", 2.0)]
    with pytest.raises(UsageError, match=r"no phase 'encode'\. Its phases are prefill, decode\."):
        load(tmp_path, CONFIGS["llama"], phases=("encode=1",))


@pytest.mark.parametrize(
    ("config", "said", "kind", "text"),
    [
        ({"model_type": "nonesuch"}, {}, EnvironmentFault, "does not know the model type 'nonesuch'"),
        ({"model_type": "llama", "architectures": ["LlamaForMagic"]}, {}, EnvironmentFault, "no class LlamaForMagic"),
        ({"_class_name": "NoSuchUNet"}, {}, EnvironmentFault, "no class NoSuchUNet"),
        ({"_class_name": "DDIMScheduler"}, {}, UsageError, "DDIMScheduler is no model"),
        ({"model_type": "time_series_transformer", "prediction_length": 4}, {}, ModelError,
         r"takes past_values, which its configuration does not describe\. Write a \.py file"),
        (CONFIGS["vit"], {}, UsageError, "ViTForImageClassification reads no text, so there is nothing of --length 12"),
        (CONFIGS["vae"], {}, UsageError, r"AutoencoderKL reads no text, .*Leave it out\."),
        ({"_class_name": "AutoencoderKLWan", "base_dim": 16}, {}, ModelError, "takes latents"),
        ({"_class_name": "WanTransformer3DModel", "num_layers": 1, "num_attention_heads": 2}, {}, ModelError,
         "takes hidden_states, which"),
        ({"model_type": "llama", **TEXT, "num_attention_heads": 3, "hidden_act": "nonesuch"}, {}, ModelError,
         "Building the model of .* with transformers"),
        (CONFIGS["qwen3_5"], {"layers": 1}, ModelError, r"does not run .*Perhaps it needs more than 1 layer\."),
        ({"model_type": "custom", "auto_map": {"AutoConfig": "configuration_custom.C"}}, {}, UsageError,
         r"'custom' comes with Python files of its own, .*--trust-remote-code\."),
        ({"model_type": "llama", "architectures": ["MyLlama"], "auto_map": {"AutoModelForCausalLM": "m.MyLlama"}}, {},
         UsageError, "The class MyLlama comes with Python files"),
    ],
)  # fmt: skip
def test_sentences(tmp_path: Path, config: dict, said: dict, kind: type, text: str):
    """What cannot be built is one sentence with what to do."""
    with pytest.raises(kind, match=text) as caught:
        load(tmp_path, config, **said)
    assert caught.value.hint


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without transformers the extra is named."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentFault, match=r"needs transformers, .* not installed\. pip install 'forge-tui\[hf\]'"):
        load(tmp_path, CONFIGS["llama"])


REMOTE_CONFIG = """
from transformers import PretrainedConfig
class TinyConfig(PretrainedConfig):
    model_type = "tiny_remote"
    def __init__(self, width=8, vocab_size=20, **kwargs):
        self.width = width
        self.vocab_size = vocab_size
        super().__init__(**kwargs)
"""
REMOTE_MODEL = """
from torch import nn
from transformers import PreTrainedModel
from .configuration_tiny import TinyConfig
from .helper import double
class TinyModel(PreTrainedModel):
    config_class = TinyConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.post_init()
    def get_input_embeddings(self):
        return self.embed
    def forward(self, input_ids):
        return double(self.embed(input_ids))
"""


def test_remote_code_runs_only_when_asked(tmp_path: Path):
    """Python files beside the configuration run with `--trust-remote-code`, and their content is part of the hash."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "configuration_tiny.py").write_text(REMOTE_CONFIG)
    (folder / "modeling_tiny.py").write_text(REMOTE_MODEL)
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "tiny_remote", "architectures": ["TinyModel"],
        "auto_map": {"AutoConfig": "configuration_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyModel"},
    }))  # fmt: skip
    with pytest.raises(UsageError, match="not run unasked"):
        load_model(parse_model(f"hf:{folder}"), "cpu")
    code = (
        "import sys, json, torch\n"
        "from forge_tui.models.load import load_model\n"
        "from forge_tui.models.spec import ModelRequest, parse_model\n"
        f"spec = parse_model('hf:{folder}', ModelRequest(remote_code=True, length=6, batch=3))\n"
        "loaded = load_model(spec, 'cpu')\n"
        "print(json.dumps([list(loaded.run().shape), type(loaded.module).__name__, loaded.own_modules]))\n"
    )
    # the library copies Python files into a cache of its own
    env = clean_environment({"HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shape, kind, own = json.loads(done.stdout.splitlines()[-1])
    assert (shape, kind) == ([3, 6, 8], "TinyModel")
    assert any(name.startswith("transformers_modules.") for name in own)
    before = parse_model(f"hf:{folder}", ModelRequest(remote_code=True)).content_hash
    (folder / "helper.py").write_text("def double(x):\n    return x + x\n")
    assert parse_model(f"hf:{folder}", ModelRequest(remote_code=True)).content_hash != before


def test_quantized_configurations_are_plain(tmp_path: Path):
    """Random weights have no scales: the quantization of a configuration is left out."""
    quantized = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    loaded = load(tmp_path, CONFIGS["llama"] | quantized)
    assert isinstance(loaded.module.model.layers[0].mlp.up_proj, nn.Linear)
    assert loaded.module.lm_head.weight.dtype == torch.float32
    assert [w.partition(":")[0] for w in loaded.warnings] == [
        "The configuration's quantization is left out, since random weights have no scales"
    ]
    assert load(tmp_path, CONFIGS["llama"]).warnings == ()


def test_nothing_is_left_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The hub is out of reach while a model is built, and as it was afterwards, also when building fails."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hf_build.offline():
        assert constants.HF_HUB_OFFLINE
    with pytest.raises(EnvironmentFault):
        load(tmp_path, {"model_type": "nonesuch"})
    assert not constants.HF_HUB_OFFLINE
    assert "HF_HUB_OFFLINE" not in os.environ
