"""What one decoder layer makes of hidden states. Knows transformers' models; holds one layer.

The layers of a model are run one after the other, each loaded into the same module, so neither the
residual stream nor the neurons of a model need the whole model in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from layerswap_method.checkpoint.config import DECODERS
from layerswap_method.tensor_names import split_layer

if TYPE_CHECKING:
    from layerswap_method.checkpoint.config import ModelShape


class LayerRunner:
    """Runs layers of one shape, one at a time, in the dtype of their weights."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype) -> None:
        """Make a model of one layer; what it weighs is replaced before every run.

        Args:
            shape: of the model; sequences must be shorter than its sliding window.
            dtype: of the weights and the hidden states.
        """
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(
            DECODERS[shape.architecture],
            vocab_size=2,
            bos_token_id=None,
            eos_token_id=None,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=1,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.positions,
            rms_norm_eps=shape.eps,
            sliding_window=None,
            hidden_act=shape.activation,
            attention_bias=shape.attention_bias,
            mlp_bias=shape.mlp_bias,
            rope_parameters={
                "rope_type": "default",
                **(shape.rope_scaling or {}),
                "rope_theta": shape.rope_base,
            },
        )
        self._model = AutoModel.from_config(config).to(dtype).eval()
        self._model.norm = torch.nn.Identity()
        self._layer = self._model.layers[0]
        self._layer.mlp.down_proj.register_forward_pre_hook(self._keep)
        self._neurons = torch.empty(0)

    def _keep(self, _module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        self._neurons = given[0]

    def run(
        self, weights: Mapping[str, torch.Tensor], hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream after a layer, and what its MLP's neurons gave.

        Args:
            weights: tensor name -> weights of this layer.
            hidden: [documents, tokens, hidden], the residual stream before it.

        Returns:
            [documents, tokens, hidden], and [documents * tokens, neurons].
        """
        self._layer.load_state_dict({split_layer(name)[1]: w for name, w in weights.items()})
        with torch.no_grad():
            after = self._model(inputs_embeds=hidden, use_cache=False).last_hidden_state
        return after, self._neurons.flatten(0, 1)
