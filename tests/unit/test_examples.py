"""The packaged example models build, run, and are the same each time."""

import pytest
import torch

from forge_tui.examples import resnet, tiny_llm, vae_decoder
from forge_tui.models.load import load_model
from forge_tui.models.spec import EXAMPLES, parse_model

SMALL = {
    "tiny-llm": (tiny_llm, tiny_llm.Config(layers=2, hidden=32, heads=4, feed_forward=48, vocabulary=50, sequence=12,
                                           batch=2, tied=True), (2, 12, 50)),
    "resnet": (resnet, resnet.Config(blocks=(1, 2), bottleneck=True, width=8, classes=10, batch=2, pixels=32), (2, 10)),
    "vae-decoder": (vae_decoder, vae_decoder.Config(channels=(16, 8), blocks=1, groups=4, latent_channels=4,
                                                    latent_pixels=8, batch=1), (1, 3, 16, 16)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs(name: str):
    """At its CPU size an example gives finite values of some spread, equal from one load to the next."""
    first, second = (load_model(parse_model(f"example:{name}"), "cpu") for _ in range(2))
    assert not first.module.training
    one, other = first.run(), second.run()
    assert torch.isfinite(one).all()
    assert 0.01 < one.std() < 100
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    for (path, a), (_, b) in zip(first.module.named_parameters(), second.module.named_parameters(), strict=True):
        assert torch.equal(a, b), path


@pytest.mark.parametrize("name", EXAMPLES)
def test_sizes_and_bfloat16(name: str):
    """Any configuration builds, in bfloat16 too, and stays near its own float32."""
    module, config, shape = SMALL[name]
    model, args, kwargs = module.build(config=config)
    low, low_args, _ = module.build(dtype=torch.bfloat16, config=config)
    with torch.no_grad():
        want, have = model(*args, **kwargs), low(*low_args)
    assert want.shape == shape
    assert have.dtype == torch.bfloat16
    assert (have.float() - want).abs().max() < 0.1 * want.abs().max()


def test_causal():
    """A later token changes nothing before it."""
    model, (ids,), _ = tiny_llm.build(config=SMALL["tiny-llm"][1])
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 50
    with torch.no_grad():
        one, other = model(ids), model(changed)
    assert torch.allclose(one[:, :6], other[:, :6], atol=1e-5)
    assert not torch.allclose(one[:, 6:], other[:, 6:], atol=1e-3)


def test_rms_norm_and_swiglu_are_what_they_say():
    """The written-out norm equals torch's, and SwiGLU its formula."""
    norm = tiny_llm.RMSNorm(24, 1e-6)
    x, y = torch.randn(3, 24), torch.randn(3, 24)
    with torch.no_grad():
        want = torch.nn.functional.rms_norm(x, (24,), norm.weight, 1e-6)
        assert torch.allclose(norm(x), want, atol=1e-5)
    assert torch.allclose(tiny_llm.swiglu(x, y), x / (1 + (-x).exp()) * y, atol=1e-6)
