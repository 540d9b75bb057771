"""Iterations of a pipeline that nothing marks but its Python stacks: calls of one model, again and again."""

from __future__ import annotations

from traces import job, ranks

from tb_ddp_doctor import engine

#: Text is encoded, eight iterations take noise away, and the image is decoded.
PIPELINE = f"""
    rank# host   [encoder]{"[denoiser][scheduler]" * 8}[decoder.]
          python [encode.]{"[denoise.]           " * 8}[decode..]
          inner   [block]
          gpu     [encoder.]{" [denoiser..........]" * 8}[decoder.]
"""
#: Within one iteration, each layer is a module of its own.
LAYERS = """
    rank# host   [own_denoise............................]
          within [layer.......][layer.......][layer.....]
          python [block1......][block2......][block.....]
          gpu     [layer.......][layer.......][layer.....]
"""


def test_calls_of_the_denoiser_are_the_iterations() -> None:
    found = engine.examine(job(ranks(PIPELINE, PIPELINE, steps=1)))
    assert (found.kind, len(found.steps)) == ("diffusion", 8)
    assert "In 8 iterations of 21.0 ms on average, each a call of FluxTransformer2DModel, the GPU" in found.headline


def test_layers_of_a_record_within_a_model_are_no_iterations() -> None:
    found = engine.examine(job(ranks(LAYERS, LAYERS, steps=1)))
    assert (found.kind, len(found.steps)) == ("diffusion", 1)
