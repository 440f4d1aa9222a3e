"""LoRA experts: the change itself, against peft, in float32 whatever the base is stored in."""

import numpy as np
import pytest
import torch
import transformers

from ablations.delta.analysis import analyse
from layerswap_method.deltas.pair import mean_feature_mav, read_deltas
from tests.delta import by_hand
from tests.delta.experts import fine_tuned, pair_of
from tests.standins.zoo import make_model

TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}


def adapted(family, folder, dtype, **options):
    """Return (base, adapter) with random factors, as peft saves them."""
    import peft

    base = make_model(family, folder / "base", 1, dtype=dtype)
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        peft.LoraConfig(
            r=2, lora_alpha=6, target_modules=TARGETS[family], task_type="CAUSAL_LM", **options
        ),
    )
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.01)
    model.save_pretrained(folder / "adapter")
    merged = model.merge_and_unload()
    merged.save_pretrained(folder / "merged")  # float32
    return base, folder / "adapter"


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", list(TARGETS))
def test_the_change_is_peft_s_and_is_not_rounded(family, dtype, tmp_path):
    base, adapter = adapted(family, tmp_path, dtype)
    ours, theirs = by_hand.read(tmp_path / "merged"), by_hand.read(base)
    ((found,), _) = analyse([f"{base}+{adapter}"], str(base), threshold=1e-5)
    changed = set(found.tensors["name"][found.tensors["share_changed"] > 0])
    assert len(changed) == 6 * 3  # GPT-2 has two c_proj
    for tensor in found.tensors.itertuples():
        wanted = by_hand.rows(tensor.name, ours[tensor.name] - theirs[tensor.name], family)
        # peft's merged float32 copy is rounded to the weights' last digit; the change here is not.
        assert tensor.mav == pytest.approx(wanted.mean(), rel=1e-3, abs=1e-9)
        assert tensor.mav_max == pytest.approx(wanted.max(), rel=1e-3, abs=1e-9)
        assert np.isnan(tensor.share_on_grid) or tensor.name not in changed
    assert "adapter" in found.dtypes
    every = np.concatenate([by_hand.rows(n, ours[n] - theirs[n], family) for n in theirs])
    pair = pair_of(base, base, adapter)
    assert mean_feature_mav(pair) == pytest.approx(every.mean(), rel=1e-3)


def test_an_adapter_on_another_checkpoint_than_the_base(tmp_path):
    base, adapter = adapted("llama", tmp_path, torch.float32)
    tuned = fine_tuned(base, tmp_path / "tuned", 4)
    ours, theirs = by_hand.read(tuned), by_hand.read(base)
    change = {
        name: values - theirs[name] for name, values in by_hand.read(tmp_path / "merged").items()
    }
    pair = pair_of(tuned, base, adapter)
    for name in pair.names:
        blocks = read_deltas(pair, name)
        delta = torch.cat([block.delta.clone() for block in blocks]).view(pair.shape(name))
        wanted = ours[name] - theirs[name] + change[name]
        np.testing.assert_allclose(delta.numpy(), wanted, atol=2e-7)
