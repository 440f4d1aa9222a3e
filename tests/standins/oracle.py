"""What a merge must give, in float64 from the paper's formula. Imports nothing of the project."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

_NUMBER = re.compile(r"\b(?:layers|h)\.(\d+)\.")
_NOT_TEXT = ("vision_tower", "image_tower", "video_tower", "visual.", "multi_modal_projector")


@dataclass(frozen=True)
class Swap:
    """Algorithm 1 (arXiv 2410.01335) with line 5 read as *and*."""

    layers: int
    b: int = 2
    u: int = 1
    t_b: int = 1
    t_u: int = 1
    non_layer: str = "average"
    w_task: float = 1.0
    w_lang: float = 1.0

    def parameters(self):
        return {
            "bottom_layers": self.b,
            "top_layers": self.u,
            "bottom_transition": self.t_b,
            "top_transition": self.t_u,
            "non_layer": self.non_layer,
            "task_weight": self.w_task,
            "language_weight": self.w_lang,
        }

    def of_layer(self, layer):
        if layer < self.b or layer > self.layers - 1 - self.u:
            return "language"
        if self.b + self.t_b <= layer < self.layers - self.u - self.t_u:
            return "task"
        return "average"

    def of_tensor(self, name):
        number = layer_number(name)
        return self.non_layer if number is None else self.of_layer(number)


def layer_number(name):
    """Return the decoder layer in a tensor's name, None outside the text decoder's layers."""
    found = _NUMBER.search(name)
    return None if found is None or any(p in name for p in _NOT_TEXT) else int(found[1])


def stored(folder):
    files = sorted(Path(folder).glob("*.safetensors"))
    assert files, f"no safetensors in {folder}"
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def round_once(values, dtype):
    """Return float64 values rounded to nearest even, straight to `dtype`.

    Not `tensor.to`: torch goes from float64 to bfloat16 by way of float32, which rounds twice.
    """
    if dtype == torch.bfloat16:
        _, exponent = np.frexp(values)
        quantum = np.ldexp(1.0, np.maximum(exponent - 8, -133))
        exact = torch.from_numpy(np.rint(values / quantum) * quantum)
        return exact.to(torch.bfloat16)
    kinds = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}
    return torch.from_numpy(np.asarray(values).astype(kinds[dtype]))


def average(task, language, swap, dtype=None):
    """Return the weighted average, computed in float64 and rounded once."""
    total = swap.w_task * task.double().numpy() + swap.w_lang * language.double().numpy()
    return round_once(total / (swap.w_task + swap.w_lang), dtype or task.dtype)


def expected(swap, task, language, base=None, dtype=None):
    """Return every tensor of the merge of two checkpoints."""
    merged = {}
    for name, tensor in task.items():
        source = swap.of_tensor(name)
        if source == "average":
            merged[name] = average(tensor, language[name], swap, dtype)
        else:
            kept = {"task": task, "language": language, "base": base or {}}[source][name]
            merged[name] = kept if dtype is None else round_once(kept.double().numpy(), dtype)
    return merged


def assert_same(found, wanted):
    """Fail unless both hold the same names, dtypes, shapes and bits."""
    assert set(found) == set(wanted), sorted(set(found) ^ set(wanted))[:6]
    assert wanted
    wrong = [name for name, tensor in wanted.items() if not same_bits(found[name], tensor)]
    assert not wrong, f"{len(wrong)} of {len(wanted)} tensors differ: {wrong[:6]}"


def same_bits(one, other):
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    as_bytes = [t.contiguous().view(-1).view(torch.uint8) for t in (one, other)]
    return bool(torch.equal(*as_bytes))


def layer_sources(parameters, layers):
    """Return whose each layer is in any placement by counts; `soup` averages all."""
    kind = parameters.get("placement", "outer")
    if kind == "soup":
        return ["average"] * layers
    b, u = parameters.get("bottom_layers", 5), parameters.get("top_layers", 2)
    after, before = (parameters.get(f"{side}_transition", 0) for side in ("bottom", "top"))
    if kind == "outer":
        return [Swap(layers, b, u, after, before).of_layer(layer) for layer in range(layers)]
    count = b + u
    if kind == "layers":
        ends = (part.split("-") for part in parameters["language_layers"].split(","))
        swapped = {layer for pair in ends for layer in range(int(pair[0]), int(pair[-1]) + 1)}
    elif kind == "middle":
        swapped = {layer for layer in range(layers) if 0 <= layer - (layers - count) // 2 < count}
    elif kind == "random":
        draw = random.Random(parameters.get("seed", 0))
        numbers = [draw.random() for _ in range(layers)]
        swapped = {
            layer for layer in range(layers) if sorted(numbers).index(numbers[layer]) < count
        }
    else:
        swapped = {int(i * layers / count) for i in range(count)}
    found = []
    for layer in range(layers):
        near = set(range(layer - after, layer)) | set(range(layer + 1, layer + before + 1))
        beside = "average" if near & swapped else "task"
        found.append("language" if layer in swapped else beside)
    return found


def merge_parts(document, layers):
    """Return tensor -> (share, tensor) of what it is made of, for a `layer_swap` of a Llama."""
    given = document["parameters"]
    plan = layer_sources(given, layers)
    experts = [
        (entry["parameters"]["role"], entry["parameters"].get("weight", 1), stored(entry["model"]))
        for entry in document["models"]
    ]
    base = stored(document["base_model"])
    sides = {role: given.get(f"{role}_weight", 1) for role in ("task", "language")}

    def parts(name, roles):
        found, whole = [], sum(sides[role] for role in roles)
        for role in roles:
            total = sum(weight for own, weight, _ in experts if own == role)
            share = sides[role] / whole if len(roles) > 1 else 1
            found += [(share * w / total, t[name]) for own, w, t in experts if own == role and w]
        return [pair for pair in found if pair[0]]

    def source(name):
        layer = layer_number(name)
        if layer is None:
            return str(given.get("non_layer", "average"))
        part = part_of(name)
        if part == "norm" and given.get("layer_norms") == "average":
            return "average"
        return plan[layer] if given.get("swap_modules", "all") in ("all", part) else "task"

    made = {}
    for name in base:
        own = source(name)
        both = ("task", "language")
        made[name] = (
            [(1, base[name])] if own == "base" else parts(name, both if own == "average" else [own])
        )
    return made


def mixture(parts):
    """Return the weighted mean of checkpoints in float64."""
    total, tensors = sum(parts.values()), [stored(path) for path in parts]
    return {
        name: torch.stack(
            [t[name].double() * w / total for t, w in zip(tensors, parts.values(), strict=True)]
        ).sum(0)
        for name in tensors[0]
    }


def row_change(name, expert, base, family):
    """Return the mean |change| of each row, an input feature, in float64 (section 3.2, Figure 2).

    A matrix [out, in] has a row for each of its inputs, the mean over the outputs; a vector is one
    row. The shape is that of the tensor but for the axis over which the mean is taken.
    """
    change = (expert.double() - base.double()).abs()
    stored_inputs_first = family == "gpt2" and re.search(r"(c_attn|c_proj|c_fc)\.weight$", name)
    outputs = 1 if change.ndim == 3 or stored_inputs_first else 0  # [experts, out, in]
    return change.mean(outputs, keepdim=True)


def mean_change(expert, base):
    """Return the mean |change| of all rows of all tensors of a Llama, in float64."""
    rows = [row_change(name, expert[name], base[name], "llama").reshape(-1) for name in base]
    return float(torch.cat(rows).mean())


def part_of(name):
    return {"self_attn": "attention", "mlp": "mlp"}.get(name.split(".")[3], "norm")


def published_shares(expert, base, unit):
    """Return each unit's share of an expert's relative change (arXiv 2601.22620).

    A unit is a layer (sum of its matrices' ||change|| / ||weight||) or a module (root of the sum
    of their squares), as the authors' programs have it.
    """
    norms = {}
    for name, tensor in base.items():
        layer, before = layer_number(name), tensor.double()
        if layer is not None and (part := part_of(name)) != "norm":
            ratio = float((expert[name].double() - before).norm() / before.norm())
            norms.setdefault((layer, part if unit == "module" else "layer"), []).append(ratio)
    power = 2 if unit == "module" else 1
    summed = {place: sum(r**power for r in each) ** (1 / power) for place, each in norms.items()}
    return {place: norm / sum(summed.values()) for place, norm in summed.items()}


def chosen(difference, threshold):
    """Return whose a unit is by how much larger the task expert's share is."""
    if abs(difference) <= threshold:
        return "average"
    return "task" if difference > 0 else "language"


def fused_mixtral(folder):
    """Return a Mixtral's tensors with the experts of a layer stacked: gate (w1) above up (w3)."""
    raw, experts = stored(folder), ".block_sparse_moe.experts."
    result = {
        n.replace("block_sparse_moe.gate", "mlp.gate"): raw[n] for n in raw if experts not in n
    }
    for layer in sorted({name.partition(experts)[0] for name in raw if experts in name}):
        numbers = range(sum(name.startswith(f"{layer}{experts}") for name in raw) // 3)

        def stacked(*kinds, layer=layer, numbers=numbers):
            names = [[f"{layer}{experts}{i}.{kind}.weight" for kind in kinds] for i in numbers]
            return torch.stack([torch.cat([raw[name] for name in each]) for each in names])

        result[f"{layer}.mlp.experts.gate_up_proj"] = stacked("w1", "w3")
        result[f"{layer}.mlp.experts.down_proj"] = stacked("w2")
    return result
