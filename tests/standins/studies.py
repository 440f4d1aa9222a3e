"""Random Llamas in the place of experts, and tasks that any of them can be asked."""

import yaml

from tests.standins.tasks import write_rows, write_task
from tests.standins.word_models import WORDS, write_model


def write_expert(folder, seed, *, layers=4, hidden=32, dtype=None, more_words=(), positions=64):
    """Write a small random model; without a dtype (of torch) it is float32."""
    return write_model(
        folder,
        seed,
        words=(*WORDS, *more_words),
        says_special=True,
        dtype=dtype,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        head_dim=hidden // 2,
        max_position_embeddings=positions,
    )


def write_tasks(folder, names, items=8):
    rows = [
        {"prompt": " ".join(WORDS[(i * s) % 24] for s in range(1, 5)), "answer": WORDS[i % 24]}
        for i in range(1, items + 1)
    ]
    data = write_rows(folder, rows)
    for name in names:
        write_task(folder, name, data)
    return folder


def study_document(**changes):
    return {
        "name": "small",
        "question": "How many?",
        "recipe": {
            "merge_method": "layer_swap",
            "models": [{"model": "task"}, {"model": "language"}],
            "base_model": "base",
            "parameters": {"bottom_layers": 1, "top_layers": 1, "non_layer": "task"},
            "dtype": "float32",
        },
        "baseline": ["base", "task_expert"],
        "vary": {"bottom_layers": [0, 1], "top_layers": [0, 1]},
        "experts": {"task": ["math"], "language": ["swahili"]},
        "evaluate": {"tasks": ["words"], "options": {"batch_size": 8}},
        **changes,
    }


def write_yaml(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    return path


def write_study(folder, items=8, **changes):
    """Write a study of experts that vLLM's CPU build takes; return it and its experts file."""
    names = {
        name: str(write_expert(folder / name, seed, hidden=64))  # heads of 32
        for seed, name in enumerate(("base", "math", "swahili"))
    }
    tasks = write_tasks(folder / "tasks", ["words"], items)
    setting = {"experts": names, "include_path": str(tasks)}
    experts = write_yaml(folder / "experts.yml", setting)
    return write_yaml(folder / "small.yml", study_document(**changes)), experts
