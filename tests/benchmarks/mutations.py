"""Makes decisive lines wrong, one at a time, and sees whether the tests notice: a check, no gate.

    python tests/benchmarks/mutations.py [PART OF A ROW OR OF A FILE'S PATH]

A block of TABLE begins with a file and the tests (in tests/) of which one must fail; a row below it
is `old => new`: text that stands once in the file, and what takes its place; other tests than the
file's stand behind an @. The tree is copied first. Prints `caught` and by what, `MISSED`, or
`STALE` where the old text is gone, which `tests/test_mutations.py` finds, too; ends with 1 unless
all were caught.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = r"""
layerswap_method/layer_plan.py @ layer_plan
range(end, end + bottom_transition) => range(end, end + top_transition)
(num_layers - top_layers, num_layers)] => (num_layers - top_layers, 0)]
key=drawn.__getitem__)[:count] => key=drawn.__getitem__)[-count:]
if part == "norm" and layer_norms => if layer_norms @ methods
layerswap_method/tensor_names.py @ checkpoint/test_layers.py
chosen = [stack for stack in sized if stack in texts] => chosen = sized
not _TEXT.search(stack), not => not _LAYERS.search(stack), not
and place >= self.num_layers => and False
layerswap_method/average.py @ layer_plan
total.div_(total.new_tensor(math.fsum(coefficients))) => total.mul_(1 / sum(coefficients))
in (dtype, result) else torch.float32 => in (dtype, result) else dtype
(entry.weight / total) * entry.scale => entry.weight * entry.scale @ methods/test_merges.py
return total.to(result) => return total.to(dtype).to(result)
layerswap_method/mix_reader.py @ write/test_files.py
_deltas[position][offset : offset + count] => _deltas[position][:count]
layerswap_method/checkpoint/lora_modules.py @ checkpoint/test_lora.py
math.sqrt(rank) if self.is_stabilised else rank => rank
return alpha / (math.sqrt => return 1 / (math.sqrt
or not math.isfinite(value): => or False:
layerswap_method/checkpoint/lora.py @ checkpoint/test_lora.py
"lora_bias", "use_dora") => "lora_bias")
if is_same or names & _names_of_place(path): => if True: @ mergekit_plugin/test_errors.py
layerswap_method/checkpoint/tied_heads.py @ checkpoint
return not all(model.head for model in (checkpoint, *others)) => return False
if not same_content(tensors[head], tensors[embedding]): => if False:
layerswap_method/checkpoint/compatible.py @ checkpoint
if first.num_layers != other.num_layers: => if False:
layerswap_method/checkpoint/vocabulary.py @ mergekit_plugin/test_errors.py
        if token != other_token: => if False:
if not added.intersection(row[1:])] => if False]
>= _ALIKE => >= -1 @ checkpoint/test_vocabulary.py
layerswap_method/checkpoint/tokens.py @ checkpoint/test_vocabulary.py
token: number + 1 for => token: number for
if _TIKTOKEN.match(content): => if False:
layerswap_method/checkpoint/settings.py @ checkpoint/test_settings.py
if is_complete or is_other_rope: => if is_complete:
completed = [_as_transformers(document) for => completed = [None for
if all(key in settings for settings in stated): => if True:
is_compared = document is text and => is_compared =
**_ROPE_DEFAULTS, **part} => **part}
if is_known and is_taken => if is_taken
layerswap_method/checkpoint/origin.py @ checkpoint/test_origin.py
if name in changes: => if False:
change >= FAR => change >= 9
layerswap_method/checkpoint/checkpoint.py @ checkpoint/test_stored.py
        if pickles: => if False:
Path(file).name != file => False
if single.is_file() and WEIGHTS_FILE not in shards: => if False:
layerswap_method/checkpoint/config.py @ checkpoint/test_stored.py
not 0 <= value < limit: => value < 0:
if place.is_file() and not any( => if False and not any( @ merge/test_merge.py
layerswap_method/checkpoint/stored.py @ checkpoint/test_stored.py
state.st_mtime_ns, state.st_ctime_ns, state.st_ino => state.st_mtime_ns, 0, 0
layerswap_method/write/layout.py @ write/test_files.py
size + tensor.nbytes > shard_bytes => size > shard_bytes
if is_finite and not bool( => if False and not bool( @ merge/test_merge.py
layerswap_method/write/files.py @ write/test_files.py
file.path.name + _PART) => file.path.name)
        os.fsync(out.fileno()) => (out.fileno())
        check_unchanged(path, stamp) => (path, stamp) @ merge/test_faults.py
layerswap_method/write/donor_files.py @ merge/test_merge.py
    if dtype is not None: => if False:
layerswap_method/write/card.py @ merge/test_merge.py
"`" * max(3, longest + 1) => "`" * 3
layerswap_method/output.py @ write/test_output.py
    if names: => if False:
    if place in inputs: => if False:
        _restore(replaced, out) => pass
                check_output(out, (), listing) => pass
            is_spare = False => is_spare = True
sys.exit(128 + number)) => sys.exit(0))
layerswap_method/merge.py @ merge/test_faults.py
    if options.verify: => if False:
layerswap_method/command_line.py @ cli/test_errors.py
    exit_code = 2 => exit_code = 1
layerswap_method/methods/delta_share.py @ methods/test_measured.py
math.hypot(*relative_norms) if unit == "module" => math.fsum(relative_norms) if unit
layerswap_method/methods/check.py @ mergekit_plugin/test_executor.py
return base if has_their_tokens else next(with_tokenizer, of_rows[0]) => return base
and not lost_tokens(giver, base) =>  @ methods/test_check.py
layerswap_method/methods/delta_revert.py @ methods/test_measured.py
float((last + smaller.max()) / 2) => float(last)
layerswap_method/methods/layer_swap.py @ recipe
            if not weights: => if False:
layerswap_method/recipe/strict_yaml.py @ recipe/test_recipes.py
and not merges: => and False:
            if key in lines: => if False:
layerswap_method/mergekit_plugin/run.py @ mergekit_plugin/test_command.py
if value and name not in _SHARED_OPTIONS: => if False:
layerswap_method/mergekit_plugin/executor.py @ mergekit_plugin/test_executor.py
                LoaderCache.loaders.clear() => pass
{**_written(entry.parameters), "scale": scale} => {**_written(entry.parameters)} @ golden
_written(recipe.parameters) | { => { @ mergekit_plugin/test_parameters.py
layerswap_method/adapter_swap/adapters.py @ adapter_swap/test_adapters.py
share * (change.scaling / scaling)) => share)
alpha = first.scaling * ranks[module] => alpha = first.scaling
ablations/harmonize/steps.py @ harmonize/test_run.py
factors={"attended": 1 / copies} => factors={}
math.sqrt(eps / shape.eps * stretch) => math.sqrt(eps / shape.eps)
ablations/engines/questions.py @ engines/test_answers.py
else (settings_hash, kind) => else (kind,)
protocol=protocol.overrides(), => protocol={}, @ runner/test_engines.py
return min(wanted, max(1, room)) => return wanted @ scoring/test_outcomes.py
ablations/engines/live.py @ engines/test_evaluator.py
engine.load(tensors) => pass
ablations/engines/hf_model.py @ scoring/test_outcomes.py
stop = [end] if may_think else until => stop = [end]
ablations/scoring/observed.py @ scoring/test_outcomes.py
float(any(outcome.is_truncated for => float(not any(outcome.is_truncated for
float(any(outcome.is_cut for => float(not any(outcome.is_cut for
ablations/scoring/scores.py @ scoring/test_scoring.py
if not agrees and aggregation in _MEANS: => if False:
ablations/engines/answers.py @ engines/test_answers.py
os.truncate(self.path, whole) => pass
ablations/runner/study_engine.py @ runner/test_engines.py
"versions": backend_versions(plan.backend) => "versions": {}
or self._contexts[folder] => or 0
self.answers_folder / work.cell.weights_key / => self.answers_folder /
ablations/tasks/numbers.py @ tasks/test_numbers.py
float(read_number(str(prediction)) == expected) => float(str(expected) in str(prediction))
return self._pattern.search => return self._last_of(self._pattern.pattern)
(" " if "space" in groups else "") => " "
ablations/tasks/boxed.py @ tasks/test_boxed.py
start, end = min(boxes) => start, end = max(boxes)
ablations/statistics/means_and_p_values.py @ statistics
scale = math.sqrt(len(units) / (len(units) - 1)) => scale = 1.0
room = margin - abs(self.mean) => room = margin
ablations/statistics/intervals.py @ statistics
** 2 / n => ** 2 / score.items
ablations/statistics/holm.py @ statistics
* np.arange(len(p), 0, -1) => * len(p)
np.maximum.accumulate(np.minimum(multiplied, 1.0)) => np.minimum(multiplied, 1.0)
ablations/statistics/mcnemar.py @ statistics
if mcnemar_p(first_only, second_only) >= alpha_of(level): => if False:
ablations/report/compare_models.py @ report/test_compare_models.py
["task", "document", "copy"], sort=False => ["task", "item", "copy"], sort=False
ablations/report/comparisons.py @ report
if (row.difference > 0) == row.higher_is_better => if row.difference > 0
is_primary = row.family == "primary" => is_primary = False
is_primary = bool(contrast.rival) and task in => is_primary = task in
"""


def rows():
    """Yield file, old text, new text and tests of every row."""
    file = default = ""
    for line in TABLE.strip("\n").splitlines():
        text, _, tests = line.partition(" @ ")
        old, arrow, new = text.partition(" => ")
        if arrow:
            yield file, old, old[: len(old) - len(old.lstrip())] + new, tests or default
        else:
            file, default = text, tests


def verdict(tree, file, old, new, tests):
    """Break one line of the copied tree, run its tests, and mend it."""
    path = tree / file
    whole = path.read_text(encoding="utf-8")
    if whole.count(old) != 1:
        return "STALE"
    path.write_text(whole.replace(old, new), encoding="utf-8")
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not vllm and not gpu"]
    command = [sys.executable, "-m", "pytest", *flags, f"tests/{tests}"]
    here = {"cwd": tree, "env": {**os.environ, "PYTHONPATH": str(tree)}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **here)
    path.write_text(whole, encoding="utf-8")
    if done.returncode == 0:
        return "MISSED"
    if done.returncode > 1:  # a file cannot be imported, or pytest was asked wrongly
        return f"NOT TRIED: {(done.stdout + done.stderr).splitlines()[-1]}"
    first = next(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    return f"caught by {first.split()[1].partition('[')[0]}"


def copy_tree(to):
    """Copy the checkout, but for what is made in it; `runs` is that at the top only."""
    made = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")

    def ignored(folder, names):
        return made(folder, names) | ({"runs"} if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, to, ignore=ignored, symlinks=True)


def main():
    """Copy the tree and go through the table."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for row in rows():
            if wanted in " ".join(row):
                verdicts.append(verdict(tree, *row))
                changed = f"{row[1].strip()} => {row[2].strip()}"
                print(f"{row[0]}: {changed}\n    {verdicts[-1]}", flush=True)
    caught = sum(each.startswith("caught") for each in verdicts)
    print(f"{caught} of {len(verdicts)} caught")
    sys.exit(caught != len(verdicts))


if __name__ == "__main__":
    main()
