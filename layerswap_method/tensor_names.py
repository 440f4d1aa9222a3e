"""The layer of a tensor, and its part (attention, feed-forward, norm), by its name.

A stack is a list of modules that a model numbers, such as `model.layers` or `visual.blocks`. One of
them is the text decoder; what is in no layer of it is treated as embeddings are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Part = Literal["attention", "mlp", "norm", "other"]
"""The part of a decoder layer that a tensor belongs to."""

_NUMBERED = re.compile(r"(.+?)\.(\d+)\.(.+)", re.DOTALL)
_LAYERS = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)$")
"""Names of the list of layers in models."""

_ATTENTION = re.compile(r"attn|attention")
_MLP = re.compile(r"mlp|feed_forward|ffn|moe|experts|^fc\d|shared_expert")
_NORM = re.compile(r"norm|^ln_?\w*$|layernorm")

_TEXT = re.compile(r"(?:^|[._])(?:language|text|llm|thinker)(?:[._]|$)")
_NOT_TEXT = re.compile(
    r"vision|visual|image|video|audio|speech|codec|projector|resampler|perceiver|vqmodel"
    r"|(?:^|[._])(?:mtp|[av]pm|vit|qformer|talker|tts|token2wav|code2wav)(?:[._]|$)"
    r"|(?:^|[._])(?:acoustic|semantic|depth|diffusion)(?:[._]|$)"
)
"""Words in the paths of text models, and of towers, codecs and further heads. Not "encoder":
ChatGLM calls its decoder so. "mtp" layers predict further tokens (Qwen3-Next)."""

_FURTHER = re.compile(r"(?:^|[._])mtp(?:[._]|$)")
_SIDE = re.compile(r"(?:^|[._])(encoder|decoder)(?=[._]|$)")
_WRAPPER = re.compile(r"\b(?:language_)?model\.")

_CONTAINER = "norm_attn_norm."
"""DBRX's module that holds the attention and both norms of a layer."""


class Decoder(NamedTuple):
    """The layers of a model's text decoder, whose tensors are called PREFIX.LAYER.REST.

    `prefix` is "" where no stack is the decoder. `num_layers` is the number of its layers (None:
    unknown), `stored` that of the whole stack, which may go on with layers that predict further
    tokens. `doubt` says why it is unclear which stack it is; "" where it is clear.
    """

    prefix: str
    num_layers: int | None
    stored: int = 0
    doubt: str = ""

    def layer(self, name: str) -> int | None:
        """Return the 0-based layer of the decoder that a tensor is in; None for all others.

        The name may be that of a file or of a loaded model, see `bare_name`.
        """
        place = self._place(name)
        is_behind = place is not None and self.num_layers is not None and place >= self.num_layers
        return None if is_behind else place

    def predicts_further(self, name: str) -> bool:
        """Return whether a tensor is of layers that predict further tokens (MTP)."""
        is_behind = self._place(name) is not None and self.layer(name) is None
        return is_behind or bool(_FURTHER.search(name.lower()))

    def is_apart(self, name: str) -> bool:
        """Return whether a tensor is no part of the text model: of a tower, or of an MTP layer."""
        is_tower = self.layer(name) is None and bool(_NOT_TEXT.search(name.lower()))
        return is_tower or self.predicts_further(name)

    def _place(self, name: str) -> int | None:
        """Return the number that a tensor has in the stack."""
        match = _NUMBERED.fullmatch(name)
        is_inside = match and self.prefix and bare_name(match[1]) == bare_name(self.prefix)
        return int(match[2]) if match and is_inside else None


def find_decoder(
    names: Iterable[str], num_layers: int | None = None, further_layers: int = 0
) -> Decoder:
    """Return which stack of a model with tensors of these `names` is the text decoder.

    It is the one of `num_layers` layers, as the text config states (None: unknown), and up to
    `further_layers` more. Of several, it is the one whose path says so. One whose path says
    something else, such as ``vision_tower``, is it only where no other can be.
    """
    stacks: dict[str, int] = {}
    for name in names:
        if (match := _NUMBERED.fullmatch(name)) is not None:
            stacks[match[1]] = max(stacks.get(match[1], 0), int(match[2]) + 1)
    texts = [stack for stack in stacks if not _NOT_TEXT.search(stack.lower())]
    sizes = range(num_layers, num_layers + further_layers + 1) if num_layers else range(0)
    sized = [stack for stack, size in stacks.items() if size in sizes]
    chosen = [stack for stack in sized if stack in texts]
    chosen = chosen or [stack for stack in texts if _LAYERS.search(stack)] or sized
    ranks = {stack: (not _TEXT.search(stack), not _LAYERS.search(stack)) for stack in chosen}
    best = [stack for stack, rank in ranks.items() if rank == min(ranks.values())]
    if any(_are_two_sides(one, other) for one in best for other in texts):
        doubt = "layers of an encoder and of a decoder, not one stack"
        return Decoder("", num_layers, doubt=doubt)
    if len(best) != 1:
        listed = ", ".join(f"{stack} ({stacks[stack]})" for stack in best or stacks)
        doubt = (
            f"several stacks of layers, {listed}, and neither num_hidden_layers in its config nor "
            "their names say which is the text decoder"
        )
        return Decoder("", num_layers, doubt=doubt if listed else "")
    return Decoder(best[0], num_layers or stacks[best[0]], stacks[best[0]])


def _are_two_sides(one: str, other: str) -> bool:
    """Return whether a stack is the encoder of an encoder-decoder model and the other its decoder.

    An audio encoder beside a language model is none.
    """
    if bool(_TEXT.search(one)) != bool(_TEXT.search(other)):
        return False
    sides = [set(_SIDE.findall(stack)) for stack in (one, other)]
    return sides in ([{"encoder"}, {"decoder"}], [{"decoder"}, {"encoder"}])


def bare_name(name: str) -> str:
    """Return a name without the modules around a text model.

    A file has them in another order than a loaded model (Gemma 3), or fewer of them (Qwen2-VL).
    """
    return _WRAPPER.sub("", name)


def split_layer(name: str) -> tuple[int | None, str]:
    """Return (0-based layer of any stack, rest of the name), or (None, name) outside of stacks.

    >>> split_layer("model.layers.3.self_attn.q_proj.weight")
    (3, 'self_attn.q_proj.weight')
    """
    match = _NUMBERED.fullmatch(name)
    return (int(match[2]), match[3]) if match else (None, name)


def is_norm(name: str) -> bool:
    """Return whether a tensor is a norm's, in a layer's attention (`self_attn.q_norm`) or not."""
    rest = split_layer(name)[1].lower().removeprefix(_CONTAINER)
    return any(_NORM.search(part) for part in rest.split("."))


def layer_part(name: str) -> Part:
    """Return the part of a layer that the tensor `name` belongs to.

    The first component after the layer index decides, so `self_attn.q_norm` is attention and
    `post_attention_layernorm` is a norm (arXiv 2410.01335, Algorithm 1).
    """
    _, rest = split_layer(name)
    head = rest.lower().removeprefix(_CONTAINER).split(".", 1)[0]
    if _NORM.search(head):
        return "norm"
    if _ATTENTION.search(head):
        return "attention"
    if _MLP.search(head):
        return "mlp"
    return "other"
